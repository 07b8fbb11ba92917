"""Hybrids: words a second on one core at their real sizes; with --train, perplexities, times and a frontier.

    python benchmarks/hybrid.py CORPUS [--presets hybrid-small hybrid hybrid-large] [--snms small medium large]
    python benchmarks/hybrid.py CORPUS --train [--presets ...] [--engine gpu] [--options "--passes 4"] [--baseline ...]
    python benchmarks/hybrid.py CORPUS --presets --plot frontier.png

Without --train, the networks have random weights and all words of the corpus, because speed does not depend on what
weights are; the SNMs are trained on the first --words words. The sentences are those of the test text. A
multiplication is one of a network's, counted from the sizes of its matrices and, of the classes' words, from the
text. The core's rates of multiplications are measured in the same run: of a product of large float32 matrices in
NumPy, and of `snm.kernels.products`. KenLM scores the same sentences one by one from Python, with a model of order 5
of the same words, where its package is installed.

With --train, each preset is trained on the whole training text, with the valid text as held-out text. Perplexities are
those of the test text, beside Kneser-Ney's of order 5, static weights in the place of the gate, and each member alone.

Every result is a line of JSON in --lines, written when it is known; a run that finds a result there does not measure
again. The plot has all models whose perplexity and speed are there, from this machine or another one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, facts_of, first_words, text_of
from threadpoolctl import threadpool_limits

import snm
from snm.baselines.neural.model import NeuralModel
from snm.baselines.neural.products import Rows, Weights
from snm.baselines.neural.rnn import ClassesOutput
from snm.layouts.tokens import BEGIN
from snm.mixing import weigh
from snm.model import LanguageModel
from snm.reproduction.plots import plot_frontier
from snm.settings import HYBRIDS
from snm.text.encoding import as_lines, encode_files, read_corpus

TIMED_TOKENS, TRANSFORMER_TOKENS = 100_000, 10_000  # of the test text
THREADS = os.cpu_count() or 1  # of perplexities
TIMES = 3  # of which the fastest counts
GATE_WORDS = 20_000  # of the valid text, for the gate beside a random network
SIDE = 1024  # of the matrices that the core's rates are measured with


class Lines:
    """Results as lines of JSON, by name."""

    def __init__(self, path: Path) -> None:
        self.path, self.known = path, {}
        if path.exists():
            self.known = {line["name"]: line for line in map(json.loads, path.read_text().splitlines())}

    def of(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of this name; it is measured and written if it is not known."""
        if name not in self.known:
            self.known[name] = {"name": name, **measure()}
            with open(self.path, "a") as file:
                file.write(json.dumps(self.known[name]) + "\n")
            print(json.dumps(self.known[name]), flush=True)
        found: dict[str, Any] = self.known[name]
        return found


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Of the fastest run, in CPU time, because the machine may be shared."""
    found = []
    for _ in range(TIMES):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def core_rates() -> dict[str, Any]:
    """Multiplications a second of one core."""
    a = np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype(np.float32)
    weights, rows = Weights(a), Rows.of(a)
    with threadpool_limits(1):
        plain = cpu_seconds(lambda: a @ a)
    own = cpu_seconds(lambda: weights.padded(rows))
    return {"float32, NumPy, G/s": SIDE**3 / plain / 1e9, "16 bits, G/s": SIDE**3 / own / 1e9}


def multiplications(model: NeuralModel, tokens: np.ndarray) -> float:
    """Of a word, on average over a text. An input product is computed once for each distinct word of a block."""
    hidden, embedding = model.shape["hidden"], model.shape["embedding"]
    gates = hidden * (4 if model.shape["cell"] == "lstm" else 1)
    distinct = np.mean([len(np.unique(tokens[a:b])) / (b - a) for a, b in model._blocks(tokens, 1)])
    layer = gates * (hidden + distinct * embedding) + hidden * embedding
    output = model.output
    if not isinstance(output, ClassesOutput):
        return float("nan")
    sizes = np.diff(output.grouping.starts)
    events = tokens[tokens != BEGIN]
    of_classes = sizes[output.class_of_row[output.grouping.places[events]]]
    return float(layer + embedding * (len(sizes) + np.where(of_classes > 1, of_classes, 0).mean()))


def speed(model: LanguageModel, tokens: np.ndarray) -> float:
    """Words and sentence ends a second on one core."""
    model.probabilities(tokens[: np.flatnonzero(tokens == BEGIN)[20]])  # compiles, and reads arrays
    return float((tokens != BEGIN).sum()) / cpu_seconds(lambda: model.probabilities(tokens))


def timed_tokens(test: Path, model: LanguageModel) -> np.ndarray:
    """The first whole sentences of the test text."""
    tokens = encode_files(test, model.vocabulary).tokens
    return tokens[: np.flatnonzero(tokens[:TIMED_TOKENS] == BEGIN)[-1]]


def speed_of(path: Path, test: Path) -> float:
    model = snm.load(path)
    return speed(model, timed_tokens(test, model))


def speeds(path: Path, test: Path, rates: dict[str, Any]) -> dict[str, Any]:
    """A hybrid's speed, its members', and what share of the core's rate its network reaches."""
    hybrid = snm.load(path)
    assert isinstance(hybrid, snm.HybridModel)
    tokens = timed_tokens(test, hybrid)
    found: dict[str, Any] = {"words": len(hybrid.vocabulary), "words/s": speed(hybrid, tokens)}
    for name, member in zip(hybrid.manifest["names"], hybrid.models, strict=True):
        found[f"{name}, words/s"] = speed(member, tokens)
        if isinstance(member, NeuralModel):
            n, grouping = multiplications(member, tokens), member.output.grouping
            rate = n * found[f"{name}, words/s"] / 1e9
            found |= {"multiplications a word": n, "classes": 0 if grouping is None else len(grouping)}
            found |= {"G multiplications/s": rate, "share of 16 bits": rate / rates["16 bits, G/s"]}
            found |= {"share of float32": rate / rates["float32, NumPy, G/s"]}
    return found


def kenlm_speed(few: Path, test: Path, work: Path) -> dict[str, Any]:
    """KenLM from Python, sentence by sentence, with a model of order 5 of the same words."""
    import kenlm

    arpa = work / "kenlm-few.arpa"
    if not arpa.exists():
        train(few, work / "kn-few.model", "--model", "kn")
        command("export", work / "kn-few.model", arpa)
    model = kenlm.Model(str(arpa))
    lines = [line for line, _ in zip(as_lines(test), range(5000), strict=False)]
    words = sum(len(line.split()) + 1 for line in lines)
    return {"words/s": words / cpu_seconds(lambda: [model.score(line) for line in lines])}


def command(*arguments: str | Path) -> str:
    """Run a command of snm; return what it prints."""
    call = [sys.executable, "-m", "snm", *map(str, arguments)]
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def training_of(name: str, held_out: Path) -> list[str | Path]:
    """Options of snm train for a preset, or for Kneser-Ney's model, which needs no held-out text."""
    return ["--model", "kn"] if name == "kn" else ["--preset", name, "--dev", held_out]


def train(text: Path, model: Path, *options: str | Path) -> dict[str, Any]:
    begun = time.perf_counter()
    made: dict[str, Any] = json.loads(command("train", text, "-o", model, "--force", "--json", *options))
    return {"seconds": time.perf_counter() - begun, "bytes": made["bytes"]}


def perplexity(model: Path, text: Path, *options: str) -> float:
    return float(json.loads(command("ppl", model, text, "--json", "--threads", str(THREADS), *options))["ppl"])


def measure_speeds(options: argparse.Namespace, lines: Lines) -> None:
    rates = lines.of("core", core_rates)
    few, words, valid, test = options.work / "few.txt", options.work / "words.txt", *options.texts[1:]
    if not words.exists():
        first_words(options.texts[0], options.words or sys.maxsize, few)
        _, vocabulary = read_corpus(options.texts[0])
        words.write_text("\n".join(vocabulary.words[3:]) + "\n")
    if find_spec("kenlm") is not None:
        lines.of("kenlm", lambda: kenlm_speed(few, test, options.work))
    dev = first_words(valid, GATE_WORDS, options.work / "gate.txt")
    for preset in options.snms:
        model = options.work / f"few-{preset}-gated.model"
        if not model.exists():
            train(few, model, *training_of(preset, dev), "--vocab", words, "--engine", "cpu")
        lines.of(f"speed of {preset}", lambda model=model: {"words/s": speed_of(model, test)})  # type: ignore[misc]
    for preset in options.presets:
        features, units = HYBRIDS[preset]
        member, network = options.work / f"few-{features}.model", options.work / f"random-{units}.model"
        if not member.exists():
            train(few, member, "--preset", features, "--gate", "0", "--vocab", words, "--engine", "cpu")
        if not network.exists():
            shape = "--cell", "lstm", "--softmax", "classes", "--hidden", str(units), "--passes", "0"
            train(few, network, "--model", "rnn", *shape, "--vocab", words, "--dev", dev, "--engine", "cpu")
        model = options.work / f"random-{preset}.model"
        if not model.exists():
            command("mix", member, network, "--gated", "--dev", dev, "-o", model)
        lines.of(f"speed of {preset}", lambda model=model: speeds(model, test, rates))  # type: ignore[misc]
    if options.baseline:
        untrained = "--minutes", "0", "--engine", "cpu", "--threads", "1", "--tokens", str(TRANSFORMER_TOKENS)
        lines.of("speed of transformer", lambda: {"words/s": transformer(options, *untrained)["words/s"]})


def measure_models(options: argparse.Namespace, lines: Lines) -> None:
    """Train, and compare with Kneser-Ney, static weights and the members."""
    text, valid, test = options.texts
    rates, more = lines.of("core", core_rates), ["--engine", options.engine, *shlex.split(options.options)]

    def single(name: str) -> dict[str, Any]:
        model = options.work / f"{name}.model"
        made = train(text, model, *training_of(name, valid), "--engine", options.engine)
        return {**made, "ppl": perplexity(model, test), "words/s": speed_of(model, test)}

    def hybrid(preset: str) -> dict[str, Any]:
        model = options.work / f"{preset}.model"
        found = {"ppl": perplexity(model, test)}
        members = [model / name for name in json.loads((model / "manifest.json").read_text())["members"]]
        mixed = weigh(members, valid, test=test, threads=THREADS)
        found |= {"static": mixed.test_perplexity, "weights": mixed.weights.tolist()}
        return found | {"members": mixed.test_perplexities, **speeds(model, test, rates)}

    kn = lines.of("kn", lambda: single("kn"))["ppl"]
    for name in options.snms:
        found = lines.of(name, lambda name=name: single(name))  # type: ignore[misc]
        print(f"{name}: {found['ppl'] / kn:.3f} of Kneser-Ney", flush=True)
    for preset in options.presets:
        call = text, options.work / f"{preset}.model", "--preset", preset, "--dev", valid, *more
        lines.of(f"training of {preset}", lambda call=call: train(*call))  # type: ignore[misc]
        found = lines.of(preset, lambda preset=preset: hybrid(preset))  # type: ignore[misc]
        print(f"{preset}: {found['ppl'] / kn:.3f} of Kneser-Ney, static weights {found['static'] / kn:.3f}", flush=True)
    if options.baseline:
        found = lines.of("transformer", lambda: transformer(options, "--engine", options.engine))
        print(f"transformer: {found['ppl'] / kn:.3f} of Kneser-Ney", flush=True)


def transformer(options: argparse.Namespace, *more: str) -> dict[str, Any]:
    script = Path(__file__).parent / "transformer.py"
    call = [sys.executable, script, *options.texts, *shlex.split(options.baseline), *more]
    made: dict[str, Any] = json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return made


def draw(corpus: str, lines: Lines, path: Path) -> None:
    """Perplexity against words a second on one core. KenLM has the perplexity of `kn`, whose estimate is the same."""
    known, rows = lines.known, []
    for name in known:
        of_core = known.get(f"speed of {name}", known[name])
        line = known["kn"] if name == "kenlm" else known[name]
        if "ppl" in line and "words/s" in of_core:
            rows.append({"model": name, "test": line["ppl"], "words/s": of_core["words/s"]})
    plot_frontier(corpus, rows, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder with train, valid and test text")
    parser.add_argument("--presets", nargs="*", default=["hybrid-small", "hybrid", "hybrid-large"])
    parser.add_argument("--snms", nargs="*", default=[], help="kn, and presets without a network, beside them")
    parser.add_argument("--words", type=int, default=3_000_000, help="that SNMs are trained on for speed; 0 for all")
    parser.add_argument("--train", action="store_true", help="train the hybrids, and report perplexities")
    parser.add_argument("--engine", default="auto", help="that hybrids are trained on")
    parser.add_argument("--options", default="", help='further ones of snm train, such as "--passes 4"')
    parser.add_argument(
        "--baseline", default="", help='options of transformer.py, such as "--minutes 4"; none: not run'
    )
    parser.add_argument("--plot", type=Path, help="draw the results of --lines")
    parser.add_argument("--work", type=Path, default=ROOT / "bench", help="folder for models [default: bench]")
    parser.add_argument("--lines", type=Path, help="results [default: hybrid.jsonl in the work folder]")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.texts = [text_of(options.corpus, part) for part in ("train", "valid", "test")]
    lines = Lines(options.lines or options.work / "hybrid.jsonl")
    lines.of("facts", lambda: facts_of(options.corpus.name))
    (measure_models if options.train else measure_speeds)(options, lines)
    if options.plot:
        draw(options.corpus.name, lines, options.plot)


if __name__ == "__main__":
    main()
