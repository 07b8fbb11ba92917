"""The disk that a training takes: what is there at the same time in each stage, from a forecast of the counts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from snm.baselines.backoff.orders import MAX_WALKS as MAX_ORDER_WALKS
from snm.baselines.backoff.orders import NUMBER_BYTES
from snm.counts.forecast import Forecast
from snm.counts.walks import LINK_BYTES
from snm.engines.cpu import spill_phases
from snm.errors import SettingsError
from snm.layouts.matrix import page_bits
from snm.progress import Notify
from snm.settings import Settings

START_BYTES, SIZE_BYTES = 4, 4  # of a page: in the matrix and, while it is written, beside it
TOKEN_BYTES = 4
WORD_BYTES = 24  # of a word in the vocabulary, and of arrays with an entry for every word
LEVEL_BYTES = 1  # of an event of a Kneser-Ney model
ROW_BYTES, ROW_LINK_BYTES = 16, 8  # of an order that has been estimated
MODEL_ROW_BYTES = 21  # of a finished backoff model, its index included; a link as before
MOST_BYTES, MOST_EVENT_BYTES = 12, 5  # of a feature of an event in counts or matrix, and as an annotation, at most


@dataclass(frozen=True)
class Spill:
    """Links that are written to disk to be sorted."""

    phases: int = 0  # 0: none are
    bytes: int = 0  # of one phase


def snm_spill(f: Forecast, templates: int, settings: Settings, partition_bytes: int, free: int) -> Spill:
    """What counting an SNM spills, as the CPU engine decides."""
    return Spill(*spill_phases(f.tokens * (templates - 1) * LINK_BYTES, partition_bytes, settings.partitions, free))


def backoff_spill(f: Forecast, partition_bytes: int, free: int) -> Spill:
    """What an order of a backoff model spills: n-grams, and the numbers that they bring along."""
    needed = f.tokens * (LINK_BYTES + NUMBER_BYTES)
    return Spill(1, needed) if MAX_ORDER_WALKS * partition_bytes < needed < free // 2 else Spill()


def has_singles(settings: Settings) -> bool:
    """Whether features seen once have no weights of their own in the matrix."""
    return settings.training.loss == "leave-one-out"


def matrix_bytes(f: Forecast, settings: Settings) -> float:
    """Bytes of the matrix and the vocabulary."""
    singles = f.words * len(settings.spec.types) * settings.weight_bits // 8 if has_singles(settings) else 0
    return f.pages_bytes + (START_BYTES << page_bits(int(f.rows))) + WORD_BYTES * f.words + singles


def backoff_bytes(f: Forecast) -> float:
    """Bytes of a backoff model."""
    return MODEL_ROW_BYTES * f.rows + ROW_LINK_BYTES * (f.links + f.words) + WORD_BYTES * f.words


def snm_stages(f: Forecast, settings: Settings, spill: Spill, events_on_disk: bool, again: bool) -> dict[str, float]:
    """Bytes on disk beside the tokens, at most, in each stage of an SNM. `again`: it is counted a second time."""
    events, matrix = f.events_bytes if events_on_disk else 0.0, matrix_bytes(f, settings)
    counts = f.counts_bytes
    building = max(counts, matrix + (SIZE_BYTES << page_bits(int(f.rows))))  # counts that were read are freed
    stages = {
        "counting": max(counts + events, _last_phase(counts + events, spill)),
        "training": counts + events,
        "building": building,
    }
    if again:
        stages |= {"counting again": max(counts, _last_phase(counts, spill)), "building again": building}
    return stages | {"writing": matrix}


def counted_stages(f: Forecast, spill: Spill) -> dict[str, float]:
    """Bytes on disk beside the tokens, at most, in each stage of counting a text for a folder of counts."""
    return {
        "counting": max(f.counts_bytes, _last_phase(f.counts_bytes, spill)),
        "writing": f.counts_bytes + TOKEN_BYTES * f.tokens + WORD_BYTES * f.words,
    }


def _last_phase(kept: float, spill: Spill) -> float:
    """Bytes when the last phase has been spilled: its links, and what earlier phases have left."""
    return spill.bytes + kept * (spill.phases - 1) / spill.phases if spill.phases else 0.0


def backoff_stages(f: Forecast, settings: Settings, spill: Spill) -> dict[str, float]:
    """Bytes on disk beside the tokens, at most, in each stage; see `snm.baselines.backoff.orders`."""
    rows, links, first_events = f.rows_by_type, f.links_by_type, settings.model == "kn"
    levels = LEVEL_BYTES * f.tokens if first_events else 0
    stages = {"counting": 2.0 * levels + spill.bytes / 2} if first_events else {}
    finished, orders = 0.0, len(rows)
    for order in range(2, orders + 1):
        finished += ROW_BYTES * rows[order - 1] + ROW_LINK_BYTES * links[order - 1]
        # Kneser-Ney estimates an order from the first events of the next longer n-grams, the highest from all
        taking_part = f.tokens if order == orders or not first_events else min(float(links[order]), f.tokens)
        returned = NUMBER_BYTES * taking_part if order < orders else 0.0
        kept = levels + NUMBER_BYTES * f.tokens + returned + finished
        stages["estimating"] = max(stages.get("estimating", 0.0), kept + spill.bytes)
    model = backoff_bytes(f)
    return stages | {"merging": levels + max(finished, model), "writing": model}


def most_bytes(tokens: int, templates: int, settings: Settings) -> int:
    """Bytes beside the tokens that a training takes at most, whatever the text is, without spilled links."""
    if settings.model == "snm":
        return tokens * (templates - 1) * (MOST_BYTES + MOST_EVENT_BYTES)
    per_order = MODEL_ROW_BYTES + ROW_LINK_BYTES
    return tokens * (2 * LEVEL_BYTES + 2 * NUMBER_BYTES + per_order * (templates - 1))


def free_bytes(folder: Path) -> int:
    """Free disk of the file system that has a folder."""
    return shutil.disk_usage(folder).free


def check(needed: float, free: int, what: str, remedy: str, notify: Notify) -> None:
    """Say how much disk is needed for `what`, and raise an error with a `remedy` if less is free."""
    message = f"{what} needs about {size(needed)} of disk at its peak, {size(free)} are free"
    notify(message)
    if needed > free:
        raise SettingsError(f"{message}: free some, write to another disk, or {remedy}")


def size(n: float) -> str:
    """Bytes for a message."""
    return f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.0f} MB"
