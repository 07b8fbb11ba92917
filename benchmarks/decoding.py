"""Word error rate and time of CTC decoding with pyctcdecode: no model, KenLM's 5-gram, and models of SNM.

    python benchmarks/decoding.py CORPUS [--kenlm DIR] [--work DIR] [--json FILE]

Needs the packages pyctcdecode (and so NumPy 1) and kenlm. All models are trained on the same text, lower case and
without punctuation, with the same vocabulary. The logits are those of a noisy channel (tests/channel.py), not of
speech. The weights of each model are tuned on valid text; errors are counted on test text. The times are of the same
sentences, one model after the other on each.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
from common import ROOT, Bench, report, timed
from pyctcdecode import Alphabet, BeamSearchDecoderCTC
from pyctcdecode.language_model import LanguageModel

sys.path.insert(0, str(ROOT))
from snm.integrations.pyctcdecode import SnmLanguageModel
from tests.channel import LABELS, logits_of, plain_words

LINES = {"train": 250_000, "valid": 6_000, "test": 6_000}
NOISE = 0.2
TUNED, SENTENCES, WORDS = 24, 150, (6, 25)
WEIGHTS = list(itertools.product((0.5, 0.75, 1.0), (0.5, 2.0)))  # alpha, beta
BEAM, TUNING_BEAM = 50, 20
Sentence = tuple[str, np.ndarray]


def main() -> None:
    logging.disable(logging.WARNING)
    bench = Bench(__doc__)
    bench.corpus = _plain_corpus(bench)
    models = _models(bench)
    tuning, scored = _sentences(bench.text("valid"), TUNED, 1), _sentences(bench.text("test"), SENTENCES, 2)
    decoders = {}
    for name, model in models.items():
        decoders[name] = BeamSearchDecoderCTC(Alphabet.build_alphabet(LABELS), model)
        if model is not None:
            _tune(decoders[name], tuning)
    errors, seconds = _decode(decoders, scored)
    words = sum(len(text.split()) for text, _ in scored)
    kenlms = errors["KenLM 5-gram"], seconds["KenLM 5-gram"]
    rows = []
    for name, decoder in decoders.items():
        model = decoder._language_model
        rows.append({
            "model": name,
            "alpha": "" if model is None else model.alpha,
            "beta": "" if model is None else model.beta,
            "word error rate": f"{errors[name] / words:.4f}",
            "errors / KenLM's": errors[name] / kenlms[0],
            "seconds a sentence": seconds[name] / len(scored),
            "time / KenLM's": seconds[name] / kenlms[1],
        })  # fmt: skip
    report("decoding", bench.options.corpus.name, rows, bench.options.json)


def _plain_corpus(bench: Bench) -> Path:
    folder: Path = bench.work / "plain"
    for part, lines in LINES.items():
        path = folder / f"{part}.txt"
        if path.exists():
            continue
        folder.mkdir(exist_ok=True)
        with open(bench.text(part), encoding="utf8") as text:
            plain = [plain_words(line) for line, _ in zip(text, range(lines), strict=False)]
        path.write_text("".join(f"{line}\n" for line in plain if line), encoding="utf8")
    for part in LINES:
        (bench.work / f"{part}.txt").unlink(missing_ok=True)
    return folder


def _models(bench: Bench) -> dict[str, Any]:
    arpa, mixture = bench.work / "kenlm.arpa", bench.work / "mixture.model"
    binary = bench.kenlm("probing", "probing")
    for preset in ("snm5", "medium"):
        bench.train(preset, "--min-count", "1")  # as lmplz has it
    if not mixture.exists():
        members = [bench.work / "medium.model", arpa, "--dev", bench.text("valid")]
        timed([sys.executable, "-m", "snm", "mix", *members, "-o", mixture], cwd=ROOT)
    ours = {
        "snm5": SnmLanguageModel(bench.work / "snm5.model"),
        "medium": SnmLanguageModel(bench.work / "medium.model"),
        "medium and KenLM 5-gram, mixed": SnmLanguageModel(mixture),
    }
    known = ours["snm5"].model.vocabulary.words
    return {"none": None, "KenLM 5-gram": LanguageModel(kenlm.Model(str(binary)), known), **ours}


def _sentences(path: Path, count: int, seed: int) -> list[Sentence]:
    """Sentences of some length, and their logits."""
    lines = [line for line in path.read_text(encoding="utf8").split("\n") if WORDS[0] <= len(line.split()) <= WORDS[1]]
    random = np.random.default_rng(seed)
    chosen = [lines[i] for i in random.choice(len(lines), count, replace=False)]
    return [(line, logits_of(line, NOISE, random)) for line in chosen]


def _tune(decoder: BeamSearchDecoderCTC, sentences: list[Sentence]) -> None:
    def errors(weights: tuple[float, float]) -> int:
        decoder.reset_params(alpha=weights[0], beta=weights[1])
        return sum(distance(text.split(), decoder.decode(logits, TUNING_BEAM).split()) for text, logits in sentences)

    best = min(WEIGHTS, key=errors)
    print("tuned:", *best, flush=True)
    decoder.reset_params(alpha=best[0], beta=best[1])


def _decode(
    decoders: dict[str, BeamSearchDecoderCTC], sentences: list[Sentence]
) -> tuple[dict[str, int], dict[str, float]]:
    """Errors and seconds of each decoder. They take turns, so that other load slows down all."""
    errors, seconds = dict.fromkeys(decoders, 0), dict.fromkeys(decoders, 0.0)
    for text, logits in sentences:
        for name, decoder in decoders.items():
            begun = time.perf_counter()
            found = decoder.decode(logits, BEAM)
            seconds[name] += time.perf_counter() - begun
            errors[name] += distance(text.split(), found.split())
    return errors, seconds


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that turn a into b."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


if __name__ == "__main__":
    main()
