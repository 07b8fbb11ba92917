"""The CTC decoder: beside pyctcdecode, hot words, streams. Word error rates are in errors.py.

    python benchmarks/ctc.py CORPUS [--work DIR] [--utterances N] [--only beside|hot|streams] [--json FILE]

`beside` needs the packages pyctcdecode (and so NumPy 1) and kenlm: run it in their environment. The model is of the
first 60,000 lines of the text, lower case and without punctuation. The logits are those of a noisy channel
(tests/channel.py), not of speech.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Bench, report, timed

sys.path.insert(0, str(ROOT))
import snm
from snm.decoding import Decoder, build_ctcdecoder
from snm.rescoring.weights import distance
from snm.system import resident_bytes
from tests.channel import LABELS, logits_of, piece_labels, piece_logits_of, plain_words

NOISES = (0.1, 0.2, 0.35)
LINES_BESIDE, PIECES = 60_000, 256
WORDS = 6, 25
HOUR = 180_000  # frames of 20 ms
Utterance = tuple[str, np.ndarray]


def main() -> None:
    logging.disable(logging.WARNING)
    bench = Bench(__doc__, utterances=500, only="")
    write_plain(bench)
    parts = {"beside": beside, "hot": hot, "streams": streams}
    for name, part in parts.items():
        if bench.options.only in ("", name):
            report(f"ctc, {name}", bench.options.corpus.name, part(bench), bench.options.json)


def write_plain(bench: Bench, most_words: float = math.inf) -> None:
    """The text as it is spoken: the first words of train, and parts of valid and test."""
    for part, most in (("train", most_words), ("valid", 400_000), ("test", 400_000)):
        path = bench.work / f"plain-{part}.txt"
        if path.exists():
            continue
        words = 0
        with open(bench.text(part), encoding="utf8") as text, open(path, "w", encoding="utf8") as plain:
            for line in text:
                spoken = plain_words(line)
                if spoken and words < most:
                    plain.write(f"{spoken}\n")
                    words += len(spoken.split())


def trained(bench: Bench, name: str, *options: str, text: str = "plain-train.txt") -> Path:
    path = bench.work / f"{name}.model"
    if not path.exists():
        command = [sys.executable, "-m", "snm", "train", bench.work / text, "-o", path, *options]
        timed(command, cwd=ROOT)
    return path


def utterances(
    bench: Bench, part: str, count: int, seed: int, noises: tuple[float, ...], pieces: list[str] | None = None
) -> list[Utterance]:
    lines = (bench.work / f"plain-{part}.txt").read_text(encoding="utf8").split("\n")
    lines = [line for line in lines if WORDS[0] <= len(line.split()) <= WORDS[1]]
    random = np.random.default_rng(seed)
    chosen = [lines[i] for i in random.choice(len(lines), count, replace=False)]

    def logits(i: int, line: str) -> np.ndarray:
        noise = noises[i % len(noises)]
        return logits_of(line, noise, random) if pieces is None else piece_logits_of(line, pieces, noise, random)

    return [(line, logits(i, line)) for i, line in enumerate(chosen)]


def _small(bench: Bench) -> Path:
    """A Kneser-Ney model of order 5 of the first lines."""
    text = bench.work / "beside.txt"
    if not text.exists():
        with open(bench.work / "plain-train.txt", encoding="utf8") as lines:
            text.write_text("".join(itertools.islice(lines, LINES_BESIDE)), encoding="utf8")
    return trained(bench, "beside", "--model", "kn", "--order", "5", "--min-count", "2", text=text.name)


def beside(bench: Bench) -> list[dict[str, Any]]:
    """Texts and times beside pyctcdecode with kenlm, the same ARPA file and settings. The decoders take turns."""
    import pyctcdecode

    path, arpa = _small(bench), bench.work / "beside.arpa"
    model = snm.load(path)
    if not arpa.exists():
        snm.export_arpa(model, arpa)
    words = (bench.work / "beside.txt").read_text(encoding="utf8").split()[:200_000]
    rows = []
    for name, pieces in (("characters", None), ("BPE", piece_labels(words, PIECES))):
        given = utterances(bench, "test", bench.options.utterances, 3, NOISES, pieces)
        labels = pieces or LABELS
        theirs = pyctcdecode.build_ctcdecoder(labels, str(arpa), alpha=0.5, beta=1.0)
        ours = build_ctcdecoder(labels, model, alpha=0.5, beta=1.0, compatible=True)
        plain = build_ctcdecoder(labels, model, alpha=0.5, beta=1.0)
        rows.append({"labels": name, **_compared(given, theirs, ours, plain)})
    return rows


def _compared(given: list[Utterance], theirs: Any, ours: Decoder, plain: Decoder) -> dict[str, Any]:
    ours.decode(given[0][1])
    seconds, texts, same = {"theirs": 0.0, "ours": 0.0, "batch": 0.0}, [], 0
    for start in range(0, len(given), 50):
        part = [logits for _, logits in given[start : start + 50]]
        found: dict[str, list[str]] = {}
        works: dict[str, Callable[[], list[str]]] = {
            "theirs": lambda part=part: [theirs.decode(logits) for logits in part],
            "ours": lambda part=part: [ours.decode(logits) for logits in part],
            "batch": lambda part=part: ours.decode_batch(None, part, threads=2),
        }
        for name, work in works.items():
            begun = time.perf_counter()
            found[name] = work()
            seconds[name] += time.perf_counter() - begun
        same += sum(a == b for a, b in zip(found["theirs"], found["ours"], strict=True))
        texts += found["theirs"]
    better = plain.decode_batch(None, [logits for _, logits in given])
    words = sum(len(line.split()) for line, _ in given)
    wrong = [
        sum(distance(line.split(), text.split()) for (line, _), text in zip(given, found, strict=True))
        for found in (texts, better)
    ]
    return {
        "utterances": len(given),
        "same text": f"{same / len(given):.1%}",
        "ms, pyctcdecode": 1000 * seconds["theirs"] / len(given),
        "ms, ours": 1000 * seconds["ours"] / len(given),
        "times as fast": seconds["theirs"] / seconds["ours"],
        "batch, 2 threads": seconds["theirs"] / seconds["batch"],
        "error rate, pyctcdecode": f"{wrong[0] / words:.4f}",
        "error rate without its empty word": f"{wrong[1] / words:.4f}",
    }


def hot(bench: Bench) -> list[dict[str, Any]]:
    """Processor time with hot words, beside that without, in turns."""
    model = snm.load(_small(bench))
    decoder = build_ctcdecoder(LABELS, model)
    given = [logits for _, logits in utterances(bench, "test", min(200, bench.options.utterances), 4, (0.2,))]
    random = np.random.default_rng(1)
    words = random.choice(np.array(model.vocabulary.words[1000:]), 1000, replace=False).tolist()
    phrases = {f"{a} {b}": 5.0 for a, b in itertools.pairwise(words)}
    lists: dict[str, Any] = {"none": None, "100": words[:100], "1,000": words, "999 phrases": phrases}
    seconds = dict.fromkeys(lists, 0.0)
    decoder.decode(given[0])
    for start in range(0, len(given), 10):
        for name, listed in lists.items():
            begun = time.process_time()
            for logits in given[start : start + 10]:
                decoder.decode(logits, hotwords=listed)
            seconds[name] += time.process_time() - begun
    return [
        {"hot words": name, "ms an utterance": 1000 * took / len(given), "time / without": took / seconds["none"]}
        for name, took in seconds.items()
    ]


def streams(bench: Bench) -> list[dict[str, Any]]:
    """An hour of audio as one stream in chunks of 10 frames, and 100 streams at once."""
    decoder = build_ctcdecoder(LABELS, _small(bench))
    logits = np.concatenate([one for _, one in utterances(bench, "test", 400, 5, (0.2,))])
    stream, memory = decoder.stream(), list[float]()
    begun = time.perf_counter()
    for at in range(0, HOUR, 10):
        stream.feed(np.take(logits, range(at, at + 10), axis=0, mode="wrap"))
        if at % 18_000 == 0:
            memory.append(resident_bytes() / 1e6)
    seconds = time.perf_counter() - begun
    nodes = sum(array.nbytes for array in stream._search.arrays) / 1e6
    many = [decoder.stream() for _ in range(100)]
    chunks = np.resize(logits, (1000, logits.shape[1]))
    started = time.perf_counter()
    for at in range(0, 1000, 10):
        for one in many:
            one.feed(chunks[at : at + 10])
    took = time.perf_counter() - started
    return [
        {"what": "an hour of audio, 20 ms a frame: seconds", "figure": seconds},
        {"what": "memory of the process, MB, after 6 minutes", "figure": memory[1]},
        {"what": "after an hour", "figure": memory[-1]},
        {"what": "arrays of the stream, MB", "figure": nodes},
        {"what": "100 streams: seconds of audio a second, all together", "figure": 100 * 1000 * 0.02 / took},
        {"what": "100 streams: ms a chunk of 10 frames", "figure": 1000 * took / 10_000},
    ]


if __name__ == "__main__":
    main()
