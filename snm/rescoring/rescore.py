"""Rescoring n-best lists with a model of any kind."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from snm.errors import InputError
from snm.layouts.tokens import END
from snm.model import LanguageModel
from snm.rescoring.lattices import BEAM, best_path, read_lattices
from snm.rescoring.nbest import Hypothesis, NBest, read_nbest, read_references, write_nbest
from snm.rescoring.weights import Weights, errors_of, totals_of, tune_weights


@dataclass(frozen=True)
class Report:
    """What rescoring did. Errors are word errors against the references, None where there are none."""

    utterances: int
    hypotheses: int
    weights: Weights
    changed: int
    """Utterances whose best hypothesis is another one now."""
    words: int | None
    errors_before: int | None
    errors: int | None
    fewest_errors: int | None
    """Those of the best hypothesis of each list."""
    seconds: float


def rescore(
    model: LanguageModel, lists: Sequence[NBest], weights: Weights | None = None, *, dev: Sequence[NBest] | None = None,
    spelled: bool = False,
) -> tuple[list[NBest], Weights]:  # fmt: skip
    """The lists with the model's scores, the best hypothesis first, and the weights that were used.

    Without weights they are tuned on `dev`, lists with references. `spelled`: whether unknown words are spelled.
    """
    if weights is None and dev is None:
        weights = Weights()
    if weights is None:
        scored = _scored(model, list(dev or []), spelled)
        weights = tune_weights(scored)
    found = []
    for one in _scored(model, lists, spelled):
        totals = totals_of(one, weights)
        for hypothesis, total in zip(one.hypotheses, totals.tolist(), strict=True):
            hypothesis.total = total
        order = np.argsort(-totals, kind="stable").tolist()
        found.append(NBest(one.id, [one.hypotheses[i] for i in order], one.reference))
    return found, weights


def _scored(model: LanguageModel, lists: Sequence[NBest], spelled: bool) -> list[NBest]:
    """The lists with the model's ln P of each hypothesis. Each text is scored once."""
    texts = list({" ".join(h.words): None for one in lists for h in one.hypotheses})
    scores = dict(zip(texts, model.score_sentences(texts, spelled=spelled), strict=True)) if texts else {}
    with np.errstate(divide="ignore"):
        empty = float(np.log10(model.distribution(model.context(""))[END]))

    def score(text: str) -> float:
        return (scores[text] if text else empty) * math.log(10)

    return [
        NBest(one.id, [_with_score(h, score(" ".join(h.words))) for h in one.hypotheses], one.reference)
        for one in lists
    ]  # fmt: skip


def _with_score(hypothesis: Hypothesis, score: float) -> Hypothesis:
    return replace(hypothesis, model=score)


def rescore_file(
    model: LanguageModel, source: str | Path, output: str | Path | None = None, weights: Weights | None = None, *,
    form: str = "nbest", dev: str | Path | None = None, reference: str | Path | None = None,
    dev_reference: str | Path | None = None, symbols: str | Path | None = None, beam: int = BEAM,
    spelled: bool = False,
) -> Report:  # fmt: skip
    """Rescore a file of n-best lists (JSON lines, a Kaldi folder) or lattices; write the result, the best first.

    `output`: JSON lines, or with the ending .txt the best texts. `reference`, `dev_reference`: Kaldi's texts, for lists
    that have no reference of their own.
    """
    begun = time.perf_counter()
    if form == "lattice":
        if dev is not None:
            raise InputError("weights are tuned on n-best lists; expected --dev with n-best lists, or weights")
        weights = weights or Weights()
        found = [best_path(model, one, weights, beam=beam, n=10) for one in read_lattices(source, symbols)]
        before = None
        _add_references(found, reference)
    else:
        lists, tuning = read_nbest(source), None if dev is None else read_nbest(dev)
        _add_references(lists, reference)
        _add_references(tuning or [], dev_reference)
        before = [NBest(one.id, list(one.hypotheses), one.reference) for one in lists]
        found, weights = rescore(model, lists, weights, dev=tuning, spelled=spelled)
    if output is not None:
        write_nbest(found, output)
    return _report(before, found, weights, time.perf_counter() - begun)


def _add_references(lists: list[NBest], path: str | Path | None) -> None:
    if path is None:
        return
    references = read_references(path)
    missing = next((one.id for one in lists if one.reference is None and one.id not in references), None)
    if missing is not None:
        raise InputError(f"{path} has no line for {missing!r}; expected the name and the words of each utterance")
    for one in lists:
        one.reference = references[one.id] if one.reference is None else one.reference


def _report(before: list[NBest] | None, found: list[NBest], weights: Weights, seconds: float) -> Report:
    errors, words = errors_of(found)
    known = any(one.reference is not None for one in found)
    changed = sum(a.hypotheses[0].text != b.hypotheses[0].text for a, b in zip(before or [], found, strict=False))
    fewest = sum(
        min(errors_of([NBest(one.id, [h], one.reference)])[0] for h in one.hypotheses) for one in found
    )  # fmt: skip
    return Report(
        len(found), sum(len(one.hypotheses) for one in found), weights, changed, words if known else None,
        errors_of(before)[0] if known and before is not None else None, errors if known else None,
        fewest if known else None, seconds,
    )  # fmt: skip
