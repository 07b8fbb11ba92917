"""One more word after a state, from Python, as in beam search, beside kenlm.Model.BaseScore.

    python benchmarks/beam.py CORPUS [--presets snm5] [--kenlm DIR] [--work DIR] [--json FILE]

Needs the package kenlm. Four measurements:

- Each word of sentences of the test text with one call of `step`.
- A decoder. Each word of a sentence has ten candidates: the word itself and words from the same position of other
  sentences. `expand` scores them after ten states, a hundred hypotheses in one call, and `follow` keeps the ten best.
  KenLM scores the same hypotheses in the same order, and keeps the same ones.
- The same calls of `BaseScore` with `snm.kenlm`, on a model folder and on KenLM's own ARPA file.
- A hundred sentences with `steps`. No two states are equal, which is not so in a decoder: the data of each is cold.

SNM is given words by their ids; KenLM has no ids and is given strings. All run nine times, taking turns; the fastest
run counts.
"""

import time
from collections.abc import Callable
from typing import Any

import kenlm
import numpy as np
from common import Bench, compared

import snm

STATES, CANDIDATES, BEAM = 10, 10, 100
WORDS, SENTENCES, TIMES = 12, 3000, 9


def microseconds(work: Callable[[], int]) -> float:
    """Microseconds a call; `work` returns the number of its calls."""
    begun = time.perf_counter()
    calls = work()
    return (time.perf_counter() - begun) / calls * 1e6


class Kenlm:
    """The measurements with KenLM, or with the same surface over SNM."""

    def __init__(self, path: str, lines: list[list[str]], module: Any = kenlm) -> None:
        self.module, self.model, self.lines = module, module.Model(path), lines

    def begin(self) -> Any:
        state = kenlm.State()
        self.model.BeginSentenceWrite(state)
        return state

    def alone(self) -> int:
        calls, before, after = 0, self.module.State(), self.module.State()
        for line in self.lines:
            self.model.BeginSentenceWrite(before)
            for word in line:
                self.model.BaseScore(before, word, after)
                before, after = after, before
                calls += 1
        return calls

    def decode(self, candidates: list[list[list[str]]], kept: np.ndarray) -> int:
        """kept[line, word]: the hypotheses to keep."""
        score, begin, calls = self.model.BaseScore, self.begin(), 0
        after = [kenlm.State() for _ in range(BEAM)]
        for of_line, kept_of_line in zip(candidates, kept.tolist(), strict=True):
            states = [begin] * STATES
            for words, chosen in zip(of_line, kept_of_line, strict=True):
                i = 0
                for state in states:
                    for word in words:
                        score(state, word, after[i])
                        i += 1
                calls += i
                states = [after[i] for i in chosen]
                for i in chosen:
                    after[i] = kenlm.State()
        return calls

    def side_by_side(self) -> int:
        calls, states, after = 0, [kenlm.State() for _ in range(BEAM)], kenlm.State()
        for first in range(0, len(self.lines), BEAM):
            for state in states:
                self.model.BeginSentenceWrite(state)
            for i in range(WORDS):
                for k, line in enumerate(self.lines[first : first + BEAM]):
                    self.model.BaseScore(states[k], line[i], after)
                    states[k], after = after, states[k]
                    calls += 1
        return calls


class Snm:
    """The measurements with SNM."""

    def __init__(self, path: str, lines: list[list[str]]) -> None:
        self.model, self.lines = snm.load(path), lines
        self.ids = np.array([self.model.vocabulary.ids_of(line[:WORDS]) for line in lines], np.uint32)

    def alone(self) -> int:
        calls = 0
        for line in self.lines:
            state = self.model.start()
            for word in line:
                _, state = self.model.step(state, word)
                calls += 1
        return calls

    def decode(self, candidates: np.ndarray, kept: np.ndarray, search: bool = False) -> int:
        """candidates: (lines, WORDS, CANDIDATES) ids. `kept` is filled if `search`, else used."""
        begin = self.model.state_array([self.model.start()] * STATES)
        for of_line, kept_of_line in zip(candidates, kept, strict=True):
            states, totals = begin, np.full(STATES, -np.inf)
            totals[0] = 0.0  # otherwise copies of one hypothesis would fill the beam
            for words, chosen in zip(of_line, kept_of_line, strict=True):
                scores = self.model.expand(states, words)
                if search:
                    scores += totals[:, None]
                    chosen[:] = np.argsort(-scores, axis=None)[:STATES]
                    totals = scores.flat[chosen]
                states = self.model.follow(states, words, chosen)
        return len(candidates) * WORDS * BEAM

    def side_by_side(self) -> int:
        begin = self.model.state_array([self.model.start()] * BEAM)
        for first in range(0, len(self.ids), BEAM):
            states = begin
            for i in range(WORDS):
                _, states = self.model.steps(states, self.ids[first : first + BEAM, i])
        return len(self.ids) * WORDS


def main() -> None:
    bench = Bench(__doc__, "snm5")
    lines = [line.split() for line in bench.text("test").read_text(encoding="utf-8").split("\n")]
    lines = [line for line in lines if len(line) >= WORDS][:SENTENCES]
    lines = lines[: len(lines) // BEAM * BEAM]
    theirs = Kenlm(str(bench.kenlm("probing", "probing")), lines)
    others = np.random.default_rng(1).integers(0, len(lines), (len(lines) // STATES, CANDIDATES))
    others[:, 0] = np.arange(len(others))
    candidates = [[[lines[k][i] for k in row] for i in range(WORDS)] for row in others]
    rows, imported = [], bench.work / "kenlm.model"
    if not imported.exists():
        snm.import_arpa(bench.work / "kenlm.arpa", imported)
    for preset in bench.options.presets:
        ours = Snm(str(bench.model(preset)), lines)
        ids = np.ascontiguousarray(ours.ids[others].transpose(0, 2, 1))  # (lines, WORDS, CANDIDATES)
        kept = np.zeros((len(ids), WORDS, STATES), np.int64)
        ours.decode(ids, kept, search=True)  # also compiles
        ours.model.step(ours.model.start(), "the")

        def decode(ours: Snm = ours, ids: np.ndarray = ids, kept: np.ndarray = kept) -> int:
            return ours.decode(ids, kept)

        def decode_theirs(kept: np.ndarray = kept) -> int:
            return theirs.decode(candidates, kept)

        same, arpa = (Kenlm(str(path), lines, snm.kenlm).alone for path in (bench.model(preset), imported))
        for what, run, other, asked in (
            ("one call", ours.alone, theirs.alone, ">= 0.2"),
            ("BaseScore of snm.kenlm", same, theirs.alone, ">= 0.2"),
            ("BaseScore of snm.kenlm, on KenLM's ARPA file", arpa, theirs.alone, ">= 0.2"),
            (f"{BEAM} at once: {CANDIDATES} words after {STATES} states each, a word", decode, decode_theirs, ">= 5"),
            (f"{BEAM} at once: {BEAM} sentences, a word", ours.side_by_side, theirs.side_by_side, ""),
        ):  # fmt: skip
            pairs = [(microseconds(run), microseconds(other)) for _ in range(TIMES)]
            found, reference = min(a for a, _ in pairs), min(b for _, b in pairs)
            rows.append(compared(f"{preset}: {what}", found, reference, asked, "µs", reference / found))
    bench.report("beam", rows)


if __name__ == "__main__":
    main()
