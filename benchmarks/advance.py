"""Scores of all words after many states on a device, beside a dense layer of PyTorch with the same output.

    python benchmarks/advance.py TEXT [--device cuda] [--tokens 1024 32000] [--words 500000] [--json FILE]

TEXT is any text; its first words are cut into pieces of words (tests/channel.py), on which `snm5` and `medium` are
trained, which takes less than a minute each. A step scores every token after each of the states. `graph`: the same
launched as one CUDA graph. The dense layer has 512 inputs and ends in a logarithm of softmax.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import ROOT, report

sys.path.insert(0, str(ROOT))
import snm
from snm.text.files import BadLines, line_blocks
from tests.channel import piece_labels, pieces_of, plain_words

BATCHES = 4, 16, 64
PRESETS = "snm5", "medium"
INPUTS = 512  # of the dense layer
STEPS, WARM_UP = 200, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", nargs="*", type=int, default=[1024])
    parser.add_argument("--words", type=int, default=500_000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for tokens in options.tokens:
            text = _tokenised(options.text, options.words, tokens, Path(folder) / f"{tokens}.txt")
            for preset in PRESETS:
                rows += _measured(text, preset, options)
    if options.device != "cpu":
        print(f"device: {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    report("advance", options.text.name, rows, options.json)


def _tokenised(source: Path, words: int, tokens: int, target: Path) -> Path:
    """The first words of a text, cut into pieces of words."""
    lines, found = [], 0
    for block in line_blocks(str(source), BadLines("replace")):
        for line in block.decode().split("\n"):
            if found < words and (spoken := plain_words(line)):
                lines.append(spoken.split())
                found += len(lines[-1])
        if found >= words:
            break
    labels = dict.fromkeys(piece_labels((word for line in lines for word in line), tokens - 3))
    cut: dict[str, str] = {}
    for line in lines:
        for word in line:
            if word not in cut:
                cut[word] = " ".join(pieces_of(word, labels))
    target.write_text("\n".join(" ".join(cut[word] for word in line) for line in lines) + "\n", encoding="utf8")
    return target


def _measured(text: Path, preset: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    begun = time.perf_counter()
    model = snm.train([text], text.with_suffix(f".{preset}"), snm.Settings(features=preset, min_count=1))
    trained = time.perf_counter() - begun
    begun = time.perf_counter()
    moved = model.to(options.device)
    print(f"{preset}: trained in {trained:.1f} s, moved in {time.perf_counter() - begun:.1f} s", flush=True)
    rows = []
    for batch in BATCHES:
        states = _states(text, model, batch)
        ids = torch.from_numpy(states ^ np.uint32(model.vocabulary.tag)).long().to(options.device)
        step = _seconds(lambda ids=ids: moved.advance(ids)[0], options)
        dense = _dense(batch, len(model.vocabulary), options)
        row = {
            "model": preset,
            "tokens": len(model.vocabulary),
            "states": batch,
            "ms a step": 1000 * step,
            "graph, ms": "" if options.device == "cpu" else 1000 * _graph_seconds(moved, ids, options),
            "dense layer, ms": 1000 * dense,
            "steps a second": 1 / step,
            "largest difference from the CPU": _difference(model, moved, states, ids),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def _states(text: Path, model: Any, batch: int) -> np.ndarray:
    """States in the middle of different sentences."""
    lines = text.read_text(encoding="utf8").split("\n")
    found = []
    for line in lines[:: max(1, len(lines) // (2 * batch))]:
        state = model.start()
        for word in line.split()[:20]:
            state = model.step(state, word)[1]
        found.append(state)
    return np.asarray(model.state_array(found[:batch]))


def _dense(batch: int, words: int, options: argparse.Namespace) -> float:
    layer = torch.nn.Linear(INPUTS, words).to(options.device)
    given = torch.randn(batch, INPUTS, device=options.device)
    with torch.no_grad():
        return _seconds(lambda: torch.log_softmax(layer(given), 1), options)


def _seconds(work: Callable[[], Any], options: argparse.Namespace) -> float:
    """Seconds a call, after some calls that are not counted."""

    def wait() -> None:
        if options.device != "cpu":
            torch.cuda.synchronize()

    for _ in range(min(WARM_UP, options.steps)):
        work()
    wait()
    begun = time.perf_counter()
    for _ in range(options.steps):
        work()
    wait()
    return (time.perf_counter() - begun) / options.steps


def _graph_seconds(moved: Any, ids: torch.Tensor, options: argparse.Namespace) -> float:
    """The same, captured once and launched as a whole."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            moved.advance(ids)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moved.advance(ids)
    return _seconds(graph.replay, options)


def _difference(model: Any, moved: Any, states: np.ndarray, ids: torch.Tensor) -> float:
    expected = model.expand(states, np.arange(len(model.vocabulary), dtype=np.uint32)) * math.log(10)
    found = moved.advance(ids)[0].double().cpu().numpy()
    known = ~np.isnan(expected)
    return float(np.abs(found[known] - expected[known]).max())


if __name__ == "__main__":
    main()
