"""A small transformer of our days as a baseline for the frontier: the same words, events and output as our networks.

    python benchmarks/transformer.py TRAIN VALID TEST [--minutes 5] [--layers 4] [--width 256] [--engine auto]

Decoder blocks with normalisation before attention and before a layer of four times the width (GELU), learned
positions, dropout, word vectors that are input and output, and the softmax over classes of `--softmax classes`.
Sentences do not see each other, as in all models here. AdamW, a rate that rises and then falls to zero over the given
minutes of wall time, gradients clipped at 1, bfloat16 on a GPU. Valid and test text are scored with the last weights.

Prints a line of JSON: perplexities of valid and test text, seconds, tokens that were trained on, parameters, words a
second at scoring on the device it was trained on. --probabilities writes those of the valid and test text, which
`snm mix` takes as members of a mixture.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from snm.baselines.neural.batches import Pieces, cut_sentences, inputs_and_targets, make_batches
from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.two_level import TwoLevel
from snm.devices import device_of
from snm.layouts.tokens import BEGIN
from snm.text.classes import learn_classes
from snm.text.encoding import Text, encode_files, read_corpus

POSITIONS = 512  # of a sentence; longer ones are scored in pieces
WARM_UP = 0.03  # part of the time in which the rate rises
WEIGHT_DECAY = 0.05
DEVIATION = 0.02  # of initial weights


class Block(nn.Module):
    """Attention to the words before, then a layer of its own for each word."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.into(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self._drop(self.out(seen.transpose(1, 2).reshape(rows, length, width)))
        return x + self._drop(self.narrow(F.gelu(self.wide(self.norms[1](x)))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Transformer(nn.Module):
    """-log P of the words of a batch of sentences."""

    def __init__(self, classes: WordClasses, counts: np.ndarray, never: list[int], how: argparse.Namespace) -> None:
        super().__init__()
        self.dropout, self.two_level = how.dropout, TwoLevel(classes, never, torch.device(how.device))
        self.two_level.sparse = False
        words = len(classes.places)
        self.vectors = nn.Parameter(torch.randn(words, how.width) * DEVIATION)
        self.positions = nn.Parameter(torch.randn(POSITIONS, how.width) * DEVIATION)
        self.blocks = nn.ModuleList([Block(how.width, how.heads, how.dropout) for _ in range(how.layers)])
        self.norm = nn.LayerNorm(how.width)
        in_rows = np.empty(words, np.float32)
        in_rows[classes.places] = np.log(np.maximum(counts, 1) / counts.sum())
        of_classes = np.logaddexp.reduceat(in_rows, classes.starts[:-1]).astype(np.float32)
        self.biases = nn.Parameter(torch.from_numpy(in_rows))
        vectors = torch.randn(len(classes), how.width) * DEVIATION
        self.class_vectors = nn.Parameter(torch.cat([vectors, torch.from_numpy(of_classes)[:, None]], 1))
        for block in self.blocks:
            for layer in (block.into, block.out, block.wide, block.narrow):
                nn.init.normal_(layer.weight, std=DEVIATION)
                nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = F.embedding(self.two_level.places[inputs], self.vectors) + self.positions[: inputs.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        z = self.norm(x).reshape(-1, x.shape[2])
        return self.two_level.loss(z, targets.reshape(-1), self.vectors, self.biases, self.class_vectors)


class Trainer:
    """Trains a transformer for a time, and scores texts with it."""

    def __init__(self, model: Transformer, never_a_target: int, how: argparse.Namespace) -> None:
        self.model, self.never_a_target, self.how = model, never_a_target, how
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, how.rate, betas=(0.9, 0.98), fused=True)
        self.tokens_seen = 0

    def train(self, text: Text) -> float:
        """Train until the time is over; return the seconds."""
        begun, seconds = time.monotonic(), 60 * self.how.minutes
        self.model.train()
        tokens = self._on_device(text.tokens)
        for batch in self._batches(text.tokens):
            done = (time.monotonic() - begun) / seconds if seconds else 1.0
            if done >= 1:
                break
            for group in self.optimiser.param_groups:
                group["lr"] = self.how.rate * min(done / WARM_UP, 1.0) * (1 - done)
            inputs, targets = inputs_and_targets(tokens, batch, self.never_a_target)
            with self._autocast():
                loss = self.model(inputs, targets).sum() / int(batch.lengths.sum())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
            self.tokens_seen += int(batch.lengths.sum())
        if self.how.device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - begun

    def _batches(self, tokens: np.ndarray) -> Iterator[Pieces]:
        pieces, number = cut_sentences(tokens, POSITIONS), 0
        while True:
            yield from make_batches(pieces, self.how.batch, np.random.default_rng([self.how.seed, number]))
            number += 1

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """P of each target of a text, in their order."""
        self.model.eval()
        whole, out = self._on_device(tokens), np.zeros(len(tokens))
        with torch.no_grad():
            for batch in make_batches(cut_sentences(tokens, POSITIONS), self.how.batch, None):
                inputs, targets = inputs_and_targets(whole, batch, self.never_a_target)
                losses = self.model(inputs, targets).double().cpu().numpy()
                known = targets.reshape(-1).cpu().numpy() >= 0
                positions = batch.starts[:, None] + 1 + np.arange(inputs.shape[1])
                out[positions.ravel()[known]] = np.exp(-losses[known])
        return out[(tokens != BEGIN) & (tokens != self.never_a_target)]

    def _on_device(self, tokens: np.ndarray) -> Tensor:
        return torch.from_numpy(tokens.astype(np.int32)).to(self.how.device)

    def _autocast(self) -> Any:
        return torch.autocast(self.how.device, torch.bfloat16, enabled=self.how.device == "cuda")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=8192, help="events of a step")
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--tokens", type=int, help="of the valid and of the test text that are scored; by default all")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--probabilities", type=Path, help="folder for valid.txt and test.txt")
    found = parser.parse_args()
    found.device = device_of(found.engine)
    return found


def main() -> None:
    how = options()
    torch.manual_seed(how.seed)
    if how.threads:
        torch.set_num_threads(how.threads)
    text, vocabulary = read_corpus(how.train)
    counts = np.bincount(text.tokens, minlength=len(vocabulary))
    classes = WordClasses.build(counts, learn_classes(text, len(vocabulary), seed=how.seed))
    never = vocabulary.never_a_target
    model = Transformer(classes, counts, [BEGIN, never], how).to(how.device)
    trainer = Trainer(model, never, how)
    seconds = trainer.train(text)
    found: dict[str, Any] = {
        "seconds": seconds, "trained on": trainer.tokens_seen, "text": text.events, "device": how.device,
        "parameters": sum(p.numel() for p in model.parameters()), "layers": how.layers, "width": how.width,
    }  # fmt: skip
    for part in ("valid", "test"):
        tokens = encode_files(getattr(how, part), vocabulary).tokens
        if how.tokens:
            tokens = tokens[: np.flatnonzero(tokens[: how.tokens] == BEGIN)[-1]]
        begun = time.process_time() if how.device == "cpu" else time.monotonic()
        p = trainer.probabilities(tokens)
        ended = time.process_time() if how.device == "cpu" else time.monotonic()
        found |= {f"{part} ppl": math.exp(-np.log(p).mean()), "words/s": len(p) / (ended - begun)}
        if how.probabilities is not None:
            how.probabilities.mkdir(parents=True, exist_ok=True)
            np.savetxt(how.probabilities / f"{part}.txt", p, "%.8g")
    print(json.dumps({**found, "ppl": found["test ppl"]}))


if __name__ == "__main__":
    main()
