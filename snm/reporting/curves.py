"""Learning curves: what the manifest of a model says of its training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snm.markup.charts import Lines
from snm.model import LanguageModel
from snm.scoring.mixture import MixtureModel
from snm.scoring.sources import SourcesModel


def curves(model: LanguageModel, prefix: str = "") -> Iterator[Lines]:
    """The curves of a model, and those of its members."""
    m = model.manifest
    yield from _training(m.get("training") or {}, prefix)
    gate = m.get("gate")
    if gate and gate.get("perplexities"):
        passes = [(float(x), y) for x, y in enumerate([gate["ungated"], *gate["perplexities"]])]
        yield Lines(f"{prefix}Gate", {"held-out": passes}, "pass", "held-out perplexity")
    tried = (m.get("pruning") or {}).get("tried")
    if tried and len(tried) > 1:
        points = sorted((size / 1e6, 100 * loss) for size, loss in tried)
        yield Lines(f"{prefix}Pruning", {"tried": points}, "MB", "perplexity lost, %")
    if isinstance(model, MixtureModel | SourcesModel):
        members = model.members if isinstance(model, MixtureModel) else model.models
        names = m["names" if isinstance(model, SourcesModel) else "members"]
        for name, member in zip(names, members, strict=True):
            yield from curves(member, f"{prefix}{name}: ")


def _training(training: dict[str, Any], prefix: str) -> Iterator[Lines]:
    held_out = training.get("perplexities") or training.get("dev_perplexities") or []
    losses, course = training.get("losses") or [], training.get("course") or []
    if len(held_out) > 1:
        first = 0 if len(held_out) > len(losses) else 1
        points = [(float(x), y) for x, y in enumerate(held_out, first)]
        yield Lines(f"{prefix}Training", {"held-out": points}, "pass", "held-out perplexity")
    if len(losses) > 1:
        points = [(float(x), y) for x, y in enumerate(losses, 1)]
        yield Lines(f"{prefix}Training loss", {"loss": points}, "pass", "mean loss")
    elif len(course) > 1:
        points = [(100 * (x + 0.5) / len(course), y) for x, y in enumerate(course)]
        yield Lines(f"{prefix}Training loss", {"loss": points}, "% of the pass", "mean loss")
