"""One more word after a state, from Python, as a beam search asks: beside kenlm.Model.BaseScore.

    python benchmarks/beam.py CORPUS [--presets snm5] [--kenlm DIR] [--work DIR] [--json FILE]

Needs the package kenlm. Sentences of the test text are scored word by word, one after another with `step`, and a
hundred side by side with `steps`; KenLM's figure is BaseScore in the same order. Three times, taking turns.
"""

import time
from collections.abc import Callable

import kenlm
import numpy as np
from common import Bench, compared

import snm

BEAM, WORDS, SENTENCES = 100, 12, 3000


def microseconds(work: Callable[[], int]) -> float:
    """A call, of as many as `work` says that it made."""
    begun = time.perf_counter()
    calls = work()
    return (time.perf_counter() - begun) / calls * 1e6


def main() -> None:
    bench = Bench(__doc__, "snm5")
    theirs = kenlm.Model(str(bench.kenlm("probing", "probing")))
    lines = [line.split() for line in bench.text("test").read_text(encoding="utf-8").split("\n")]
    lines = [line for line in lines if len(line) >= WORDS][:SENTENCES]
    lines = lines[: len(lines) // BEAM * BEAM]

    def kenlm_alone() -> int:
        calls, before, after = 0, kenlm.State(), kenlm.State()
        for line in lines:
            theirs.BeginSentenceWrite(before)
            for word in line:
                theirs.BaseScore(before, word, after)
                before, after = after, before
                calls += 1
        return calls

    def kenlm_together() -> int:
        calls, states, after = 0, [kenlm.State() for _ in range(BEAM)], kenlm.State()
        for first in range(0, len(lines), BEAM):
            for state in states:
                theirs.BeginSentenceWrite(state)
            for i in range(WORDS):
                for k, line in enumerate(lines[first : first + BEAM]):
                    theirs.BaseScore(states[k], line[i], after)
                    states[k], after = after, states[k]
                    calls += 1
        return calls

    rows = []
    for preset in bench.asked.presets:
        model = snm.load(bench.model(preset))

        def alone(model: snm.LanguageModel = model) -> int:
            calls = 0
            for line in lines:
                state = model.start()
                for word in line:
                    _, state = model.step(state, word)
                    calls += 1
            return calls

        def together(model: snm.LanguageModel = model) -> int:
            calls = 0
            for first in range(0, len(lines), BEAM):
                states = np.stack([model.start()] * BEAM)
                for i in range(WORDS):
                    _, states = model.steps(states, [line[i] for line in lines[first : first + BEAM]])
                    calls += BEAM
            return calls

        model.step(model.start(), "the")  # compiles
        for what, ours, other, asked in (
            ("one call", alone, kenlm_alone, ">= 0.2"),
            (f"a batch of {BEAM}, a word", together, kenlm_together, ">= 5"),
        ):
            pairs = [(microseconds(ours), microseconds(other)) for _ in range(3)]
            found, reference = min(a for a, _ in pairs), min(b for _, b in pairs)
            rows.append(compared(f"{preset}: {what}", found, reference, asked, "µs", reference / found))
    bench.report("beam", rows)


if __name__ == "__main__":
    main()
