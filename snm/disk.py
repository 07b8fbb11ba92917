"""The disk that a training takes: what lives at the same time in each of its stages, from a forecast of the counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from snm.counts.forecast import Forecast
from snm.counts.walks import LINK_BYTES
from snm.engines.cpu import MAX_WALKS
from snm.errors import SettingsError
from snm.layouts.matrix import page_bits
from snm.progress import Notify
from snm.settings import Settings

TOKEN_BYTES = 4
SPILL_SHARE = 1 / 3  # of the free disk, at most, for spilled links
PAGE_BYTES = 8  # of a page's start and, while the matrix is written, its size
WORD_BYTES = 24  # of a word in the vocabulary, and of arrays with an entry for every word
LEVEL_BYTES, NUMBER_BYTES = 1, 8  # of an event, while a backoff model is estimated
ROW_BYTES, ORDER_LINK_BYTES = 16, 8  # of an order that has been estimated
MODEL_ROW_BYTES = 21  # of a finished backoff model; a link as before
MOST_BYTES, MOST_EVENT_BYTES = 12, 5  # of a feature of an event in counts or matrix, and as an annotation, at most


class Stage(NamedTuple):
    """A stage of a training, and the bytes that are on disk while it runs, beside the tokens."""

    name: str
    kept: float
    spilled: float = 0.0  # links; they take less where less disk is free

    @property
    def bytes(self) -> float:
        return self.kept + self.spilled


def spilled_bytes(links: float, partition_bytes: int, partitions: int | None, free: int, link_bytes: int = 8) -> float:
    """Bytes of links that are spilled at a time; 0 if few walks over the text suffice."""
    if (partitions or links * link_bytes / partition_bytes) <= MAX_WALKS:
        return 0.0
    return min(links * link_bytes, SPILL_SHARE * free)


def matrix_bytes(f: Forecast, settings: Settings) -> float:
    """Bytes of the matrix and the vocabulary."""
    singles = f.words * len(settings.spec.types) * settings.weight_bits // 8 if has_singles(settings) else 0
    return f.pages_bytes + PAGE_BYTES * (1 << page_bits(int(f.rows))) + WORD_BYTES * f.words + singles


def has_singles(settings: Settings) -> bool:
    """Whether features seen once have no weights of their own in the matrix."""
    return settings.training.loss == "leave-one-out"


def snm_stages(f: Forecast, settings: Settings, spilled: float, events_on_disk: bool, again: bool) -> list[Stage]:
    """The stages of an SNM. `again`: it is counted a second time, with the text that was held out."""
    events, matrix = f.events_bytes if events_on_disk else 0.0, matrix_bytes(f, settings)
    stages = [
        Stage("counting", f.counts_bytes + events, spilled),
        Stage("learning", f.counts_bytes + events),
        Stage("building", max(f.counts_bytes, matrix)),  # the disk of counts that were read is given back
        Stage("gating", matrix),
    ]
    if again:
        stages += [Stage("counting again", f.counts_bytes, spilled), stages[2]._replace(name="building again")]
    return [*stages, Stage("writing", matrix)]


def backoff_stages(f: Forecast, settings: Settings, spilled: float) -> list[Stage]:
    """The stages of a backoff model, see `snm.baselines.backoff.orders`. `spilled`: of n-grams without numbers."""
    rows, links = f.rows_by_type, f.links_by_type
    orders, levels = len(rows), LEVEL_BYTES * f.tokens if settings.model == "kn" else 0
    stages, finished = [], 0.0
    if settings.model == "kn":
        stages.append(Stage("counting", levels + LEVEL_BYTES * f.tokens, spilled))
    for order in range(2, orders + 1):
        finished += ROW_BYTES * rows[order - 1] + ORDER_LINK_BYTES * links[order - 1]
        takes_part = float(links[order]) if settings.model == "kn" and order < orders else f.tokens
        returned = NUMBER_BYTES * min(takes_part, f.tokens) if order < orders else 0.0
        kept = levels + NUMBER_BYTES * f.tokens + returned + finished
        stages.append(Stage(f"estimating {order}-grams", kept, 2 * spilled))
    model = MODEL_ROW_BYTES * rows.sum() + ORDER_LINK_BYTES * links.sum() + WORD_BYTES * f.words
    return [*stages, Stage("merging", levels + max(finished, model)), Stage("writing", model)]


def most_bytes(tokens: int, templates: int, settings: Settings) -> int:
    """Bytes beside the tokens that a training takes at most, whatever the text is."""
    if settings.model == "snm":
        return tokens * (templates - 1) * (MOST_BYTES + MOST_EVENT_BYTES)
    per_order = MODEL_ROW_BYTES + ORDER_LINK_BYTES
    return tokens * (2 * LEVEL_BYTES + 2 * NUMBER_BYTES + per_order * (templates - 1))


def check(stages: Iterable[Stage], folder: Path, notify: Notify) -> None:
    """Raise an error if a stage needs more disk than is free. Spilled links take less if less is free."""
    needed, free = max(stage.kept for stage in stages), shutil.disk_usage(folder).free
    message = f"about {needed / 1e6:,.0f} MB of disk are needed, {free / 1e6:,.0f} MB are free"
    notify(message)
    if needed > free:
        raise SettingsError(
            f"{message}: free some, write to another disk, or choose fewer features (--prune, --preset)"
        )
