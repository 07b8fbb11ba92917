"""Word error rates of the CTC decoder with models of the same text, and of n-best lists that they rescore.

    python benchmarks/errors.py CORPUS [--models "kn snm5 medium kn+medium"] [--noises "0.1 0.2 0.3"]
        [--utterances 1000] [--tuned 250] [--weights "0.8,3.5,-10 1,3.5,-15"] [--beam 300] [--words N]
        [--work DIR] [--json FILE]

All models are trained on the text, or its first words (--words), lower case and without punctuation, with the same
vocabulary: `kn` is Kneser-Ney of order 5, the others are presets, also of hybrids, and a+b is the mixture of two. The
logits are those of a noisy channel (tests/channel.py), not of speech, at several noises. The weights of each model
(alpha, beta and the offset of unknown words) are the best of --weights on utterances of valid text, which are decoded
with each; errors are counted on others of test text. Intervals are of 95 %, by resampling utterances. The second table
is of the best texts that each model found, up to 100, which each model rescores, with weights tuned on the texts of
valid text. Milliseconds are processor time of one thread. What was found is kept in the work folder.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Bench, report, timed
from ctc import Utterance, trained, utterances, write_plain

sys.path.insert(0, str(ROOT))
import snm
from snm.decoding import Beam, Decoder, build_ctcdecoder
from snm.rescoring import Hypothesis, NBest, errors_of, read_nbest, rescore, write_nbest
from snm.rescoring.weights import distance
from tests.channel import LABELS

WEIGHTS = " ".join(f"{a},{b},{o}" for a in (0.7, 0.8, 0.9, 1.0) for b in (3, 3.5, 4) for o in (-10, -15))
KEPT = 100
PRUNE, MIN_TOKEN = -20.0, -9.0
"""With pyctcdecode's -10 and -5 and 100 beams half as many errors more are made: the decoder loses what was said."""


def main() -> None:
    more = {"models": "kn snm5 medium large kn+medium kn+large", "noises": "0.1 0.2 0.3"}
    bench = Bench(__doc__, **more, weights=WEIGHTS, utterances=1000, tuned=250, beam=300, words=10**12)
    write_plain(bench, bench.options.words)
    names, rows, second = bench.options.models.split(), [], []
    for noise in map(float, bench.options.noises.split()):
        tuning = utterances(bench, "valid", bench.options.tuned, 1, (noise,))
        test = utterances(bench, "test", bench.options.utterances, 2, (noise,))
        rows += _decoded(bench, ["", *names], tuning, test, noise)
        second += _rescored(bench, names, noise)
    for name, table in (("errors", rows), ("errors, rescoring", second)):
        report(name, bench.options.corpus.name, table, bench.options.json if name == "errors" else None)


def _path_of(bench: Bench, name: str) -> Path:
    """A model; it is trained, or mixed of two, the first time."""
    path: Path = bench.work / f"{name}.model"
    if "+" in name and not path.exists():
        members = [_path_of(bench, part) for part in name.split("+")]
        timed([sys.executable, "-m", "snm", "mix", *members, "--dev", bench.work / "plain-valid.txt", "-o", path])
    how = ["--model", "kn", "--order", "5"] if name == "kn" else ["--preset", name]
    return path if "+" in name else trained(bench, name, *how, "--min-count", "3", "--memory", "8G")


def _file(bench: Bench, noise: float, name: str, kind: str) -> Path:
    return Path(bench.work) / f"{kind}-{bench.options.utterances}-{noise}-{name or 'none'}.jsonl"


def _decoded(
    bench: Bench, names: list[str], tuning: list[Utterance], test: list[Utterance], noise: float
) -> list[dict[str, Any]]:
    """Rows of the table for one noise. The n-best lists and the weights are kept in files."""
    words, rows, first = sum(len(line.split()) for line, _ in test), [], None
    for name in names:
        path = _file(bench, noise, name, "weights")
        if not path.exists():
            _decode(bench, name, tuning, test, noise)
        given, lists = json.loads(path.read_text()), read_nbest(_file(bench, noise, name, "test"))
        wrong, unknown = np.array([_errors(one) for one in lists]), np.array(given["unknown"])
        first = wrong[:, 0] if name == names[1] else first
        plain = unknown == 0
        rows.append({
            "noise": noise,
            "model": name or "none",
            "alpha": given["alpha"] if name else "",
            "beta": given["beta"] if name else "",
            "offset": given["offset"] if name else "",
            "word error rate": f"{wrong[:, 0].sum() / words:.4f}",
            **_beside(wrong[:, 0], first),
            "best of the beams": f"{wrong[:, 1].sum() / words:.4f}",
            "unknown words": f"{unknown.sum() / words:.4f}" if name else "",
            "errors / the first's, no unknown words": _ratio(wrong[:, 0], first, plain),
            "ms an utterance": f"{given['ms']:.0f}",
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _decode(bench: Bench, name: str, tuning: list[Utterance], test: list[Utterance], noise: float) -> None:
    model, beam = snm.load(_path_of(bench, name)) if name else None, bench.options.beam
    decoder = build_ctcdecoder(LABELS, model)
    if model is not None:
        weights = [tuple(map(float, weights.split(","))) for weights in bench.options.weights.split()]
        _as_file(tuning, _tune(decoder, tuning, weights, beam), _file(bench, noise, name, "valid"))
    decoder.decode(test[0][1])  # kernels are loaded
    begun = time.process_time()
    found = decoder.decode_beams_batch(None, [logits for _, logits in test], beam, PRUNE, MIN_TOKEN)
    took = time.process_time() - begun
    _as_file(test, found, _file(bench, noise, name, "test"))
    known = () if model is None else set(model.vocabulary.words)
    unknown = [sum(word not in known for word in line.split()) for line, _ in test]
    chosen = {"alpha": decoder.alpha, "beta": decoder.beta, "offset": decoder.unk_score_offset}
    chosen |= {"ms": 1000 * took / len(test), "unknown": unknown}
    _file(bench, noise, name, "weights").write_text(json.dumps(chosen))


def _rescored(bench: Bench, names: list[str], noise: float) -> list[dict[str, Any]]:
    """Rows of the second table for one noise."""
    first = np.array([_errors(one)[0] for one in read_nbest(_file(bench, noise, names[0], "test"))])
    rows, rescored = [], None
    for lists, name in product(names, names):
        dev, test = (read_nbest(_file(bench, noise, lists, part)) for part in ("valid", "test"))
        model, begun = snm.load(_path_of(bench, name)), time.process_time()
        found, weights = rescore(model, test, dev=dev)
        took = time.process_time() - begun
        wrong = np.array([_errors(one)[0] for one in found])
        rescored = wrong if rescored is None else rescored
        rows.append({
            "noise": noise,
            "decoded with": lists,
            "rescored with": name,
            "weights": f"{weights.model:.2f}, old {weights.language:.2f}, words {weights.word:.2f}",
            "word error rate": f"{wrong.sum() / errors_of(test)[1]:.4f}",
            **_beside(wrong, first),
            "errors / the first's, rescored": f"{wrong.sum() / rescored.sum():.3f}",
            "ms an utterance, tuning included": f"{1000 * took / len(test):.1f}",
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _ratio(ours: np.ndarray, theirs: np.ndarray | None, where: np.ndarray) -> str:
    return "" if theirs is None else f"{ours[where].sum() / theirs[where].sum():.3f}"


def _beside(ours: np.ndarray, theirs: np.ndarray | None) -> dict[str, str]:
    """Our errors beside those with the first model, and the interval of 95 % of the ratio."""
    if theirs is None:
        return {"errors / the first's": "", "interval": ""}
    random = np.random.default_rng(0)
    chosen = random.integers(0, len(ours), (2000, len(ours)))
    low, high = np.quantile(ours[chosen].sum(1) / theirs[chosen].sum(1), [0.025, 0.975])
    return {"errors / the first's": f"{ours.sum() / theirs.sum():.3f}", "interval": f"{low:.3f} to {high:.3f}"}


def _errors(one: NBest) -> tuple[int, int]:
    """Word errors of the best hypothesis, and the fewest of any."""
    errors = [errors_of([NBest(one.id, [hypothesis], one.reference)])[0] for hypothesis in one.hypotheses]
    return errors[0], min(errors)


def _as_file(given: list[Utterance], found: list[list[Beam]], path: Path) -> None:
    lists = [
        NBest(str(i), [Hypothesis(beam.text, beam.logit_score, beam.language_score) for beam in beams[:KEPT]], line)
        for i, ((line, _), beams) in enumerate(zip(given, found, strict=True))
    ]
    write_nbest(lists, path)


def _tune(decoder: Decoder, given: list[Utterance], weights: list[tuple[float, ...]], beam: int) -> list[list[Beam]]:
    """Set the weights with the fewest errors, and return the beams that they find.

    Utterances are decoded with all weights: weighing the beams of some anew tells little of what others would find,
    because the weights decide which beams are lost.
    """
    best: tuple[int, tuple[float, ...], list[list[Beam]]] | None = None
    for some in weights:
        decoder.reset_params(*some)
        found = decoder.decode_beams_batch(None, [frames for _, frames in given], beam, PRUNE, MIN_TOKEN)
        wrong = sum(
            distance(line.split(), beams[0].text.split()) for (line, _), beams in zip(given, found, strict=True)
        )
        print(f"{some}: {wrong} errors", flush=True)
        if best is None or wrong < best[0]:
            best = wrong, some, found
    assert best is not None
    decoder.reset_params(*best[1])
    return best[2]


if __name__ == "__main__":
    main()
