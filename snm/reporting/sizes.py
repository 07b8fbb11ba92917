"""What a model is made of: rows, links and bytes by feature type, or the arrays of a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.layouts.matrix import MAX_UNSUMMED
from snm.model import LanguageModel
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel

ROW_BYTES, LINK_BYTES = 7, 3.5  # of a row of M, and of each of its links, before they are scaled to the files


@dataclass(frozen=True)
class Size:
    """Rows, links and bytes of a part of a model; None where they are not known or there are none."""

    name: str
    bytes: float | None
    rows: int | None = None
    links: int | None = None


@dataclass(frozen=True)
class Sizes:
    """The parts of a model, in the order of its specification."""

    title: str
    parts: list[Size]
    note: str = ""


def sizes(model: LanguageModel) -> list[Sizes]:
    """What takes how much, of a model and of its members."""
    if isinstance(model, SnmModel):
        return [_of_snm(model)]
    if isinstance(model, BackoffModel):
        return [_of_backoff(model)]
    if isinstance(model, MixtureModel | SourcesModel):
        members = model.members if isinstance(model, MixtureModel) else model.models
        names = model.manifest["names" if isinstance(model, SourcesModel) else "members"]
        own = [Size(name, model_bytes(member), **_counts(member)) for name, member in zip(names, members, strict=True)]
        made = [Sizes("By member", own)]
        for name, member in zip(names, members, strict=True):
            made += [Sizes(f"{name}: {part.title}", part.parts, part.note) for part in sizes(member)]
        return made
    return [Sizes("By file", _files(model))]


def model_bytes(model: LanguageModel) -> int:
    """Bytes of the files of a model."""
    return sum(int(entry["bytes"]) for entry in model.manifest["files"].values())


def _counts(model: LanguageModel) -> dict[str, int]:
    return {name: model.manifest[name] for name in ("rows", "links") if name in model.manifest}


def _files(model: LanguageModel) -> list[Size]:
    files = {name: float(entry["bytes"]) for name, entry in model.manifest["files"].items()}
    return [Size(name, size) for name, size in sorted(files.items(), key=lambda item: -item[1])]


def _of_backoff(model: BackoffModel) -> Sizes:
    """The rows of the context of each order, and their links."""
    n = len(model.spec.types)
    types = model.layout.type_of(model.index.features)
    rows, links = np.bincount(types, minlength=n), np.bincount(types, np.diff(model.offsets), minlength=n)
    of_row: float = model.index.features.itemsize + model.backoffs.itemsize + model.offsets.itemsize
    of_row += model.index.directory.nbytes / max(1, len(types))
    of_link = model.targets.itemsize + model.link_probabilities.itemsize
    parts = [
        Size(str(kind), float(rows[i] * of_row + links[i] * of_link), int(rows[i]), int(links[i]))
        for i, kind in enumerate(model.spec.types)
    ]
    return Sizes("By order", parts)


def _of_snm(model: SnmModel) -> Sizes:
    m = model.manifest
    rows = m.get("rows_by_type")
    if rows is None:
        return Sizes("By file", _files(model), "Rows by feature type are not known of a pruned model.")
    if "links_by_type" not in m:
        parts = [Size(name, None, n) for name, n in rows.items()]
        return Sizes("By feature type", parts, "The model was written by an older version: its links are not known.")
    return Sizes(
        "By feature type",
        _typed(model),
        "Bytes are estimated from rows and links, and add up to those of the files; the rest are words and gate.",
    )


def _typed(model: SnmModel) -> list[Size]:
    """Rows, links and bytes by type. Rows seen once take their entry in a page alone; long rows take more."""
    m = model.manifest
    names = list(m["rows_by_type"])
    rows, links, singles = (
        np.array([m[f"{what}_by_type"][name] for name in names], np.float64) for what in ("rows", "links", "singles")
    )
    shared = len(model.matrix.singles) > 0
    single_bytes = 5 if shared else 7 + 2 + int(model.matrix.code_bytes)
    many, of_many = rows - singles, np.maximum(links - singles, 0)
    sums = np.where(of_many > MAX_UNSUMMED * np.maximum(many, 1), 4 * many, 0)
    about = singles * single_bytes + many * ROW_BYTES + of_many * (LINK_BYTES + int(model.matrix.code_bytes) - 1) + sums
    about[0] = 0  # the empty feature has an array of its own
    pages = model.matrix.data.nbytes + model.matrix.long_links.nbytes + model.matrix.starts.nbytes
    about *= pages / max(1.0, about.sum())
    about[0] = model.matrix.unigrams.nbytes
    rest = model_bytes(model) - float(about.sum())
    figures = zip(names, about.tolist(), rows.tolist(), links.tolist(), strict=True)
    typed = [Size(name, size, int(n), int(k)) for name, size, n, k in figures]
    return [*typed, Size("the rest", max(0.0, rest))]
