"""A filter for datatrove's pipelines: documents that a model finds probable pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snm.arguments import real_number, whole_number
from snm.errors import MissingExtra, SettingsError
from snm.filtering import TextPerplexity
from snm.model import LanguageModel

try:
    from datatrove.pipeline.filters.base_filter import BaseFilter
except ImportError:
    raise MissingExtra("datatrove[processing]", "datatrove", "a filter for datatrove") from None

BATCH = 256  # documents scored at a time


class PerplexityFilter(BaseFilter):
    """Keeps documents whose perplexity is at most `max_ppl` and at least `min_ppl`.

    With `against`, another model, the score is the ratio of the perplexities under the two, and `max_ratio` its limit.
    Every line of a document is a sentence. The score is in the document's metadata, as `perplexity` or
    `perplexity_ratio`; a document without words is dropped. `spelled`: see `snm.TextPerplexity`.
    """

    name = "SNM perplexity"

    def __init__(
        self, model: LanguageModel | str | Path, *, max_ppl: float | None = None, min_ppl: float | None = None,
        against: LanguageModel | str | Path | None = None, max_ratio: float | None = None, spelled: bool = True,
        exclusion_writer: Any = None, batch_size: int = BATCH,
    ) -> None:  # fmt: skip
        super().__init__(exclusion_writer, whole_number("batch_size", batch_size, 1))
        if (max_ratio is None) == (max_ppl is None and min_ppl is None) or (max_ratio is None) != (against is None):
            raise SettingsError("give max_ppl or min_ppl, or else both max_ratio and against")
        high = max_ppl if against is None else max_ratio
        self.low = 0.0 if min_ppl is None else real_number("min_ppl", min_ppl)
        self.high = float("inf") if high is None else real_number("the limit", high)
        self.entry = "perplexity" if against is None else "perplexity_ratio"
        self.perplexity = TextPerplexity(model, against=against, spelled=spelled)

    def filter(self, doc: Any) -> bool | tuple[bool, str]:
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Any]) -> list[bool | tuple[bool, str]]:
        scores = self.perplexity([doc.text for doc in batch]).tolist()
        return [self._decide(doc, score) for doc, score in zip(batch, scores, strict=True)]

    def _decide(self, doc: Any, score: float) -> bool | tuple[bool, str]:
        if score != score:
            return False, "no_words"
        doc.metadata[self.entry] = score
        if score > self.high:
            return False, f"high_{self.entry}"
        return (False, f"low_{self.entry}") if score < self.low else True
