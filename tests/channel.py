"""A noisy channel: the logits that an acoustic model could have for a text. Tests and benchmarks decode them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
LABELS = ["", " ", *LETTERS]
"""The blank, the space, and the letters."""
_ALIKE = ("aeiouy", "bpdtgk", "mnl", "szcx", "fvw", "jgqh", "r'l")
"""Letters that are taken for each other."""


def plain_words(line: str) -> str:
    """The words of a line as they are spoken: lower case, letters and apostrophes alone."""
    words = re.findall(r"[a-z][a-z']*", line.lower().replace("n't", "n't "))
    return " ".join(words)


def logits_of(text: str, noise: float, random: np.random.Generator, frames: int = 2) -> np.ndarray:
    """Natural log probabilities of the labels in each frame. (frames, labels) float32

    A character has up to `frames` frames, then a blank may follow, as it must between equal ones. `noise`: how often a
    character is taken for one like it, and how much of the score is random.
    """
    path, last = [], -1
    for character in text:
        label = LABELS.index(character)
        if label == last or random.random() < 0.3:
            path.append(0)
        path += [label] * int(random.integers(1, frames + 1))
        last = label
    scores = random.normal(0.0, 1.0 + noise, (len(path), len(LABELS)))
    start = 0
    for end in range(1, len(path) + 1):
        if end == len(path) or path[end] != path[start]:
            _add_peaks(scores[start:end], path[start], noise, random)
            start = end
    scores -= np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return scores.astype(np.float32)


def _add_peaks(scores: np.ndarray, label: int, noise: float, random: np.random.Generator) -> None:
    """Raise the label of some frames, and one like it, which is the higher one if the two are confused."""
    peak = 6.0 + random.normal(0.0, 1.0)
    alike = [other for group in _ALIKE if LABELS[label] in group for other in group] if label > 1 else []
    confused = random.random() < noise
    scores[:, label] += peak - (random.uniform(0.0, 3.0) if confused else 0.0)
    if alike and confused:
        scores[:, LABELS.index(str(random.choice(alike)))] += peak


def write_sound_alikes(path: Path) -> Path:
    """A text whose words sound alike; a model knows who has which."""
    random = np.random.default_rng(11)
    things = {"the man": "pat", "a nan": "bat", "my sister": "pad", "the nurse": "bad", "her mister": "ped"}
    places = ["in the garden", "at noon", "by the sea", "under a red tent"]
    lines = []
    for _ in range(600):
        who, other = random.choice(list(things), 2).tolist()
        lines.append(f"{who} has {things[who]} and {other} likes {things[other]} {random.choice(places)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def piece_labels(words: Iterable[str], pieces: int) -> list[str]:
    """Labels of a model of word pieces: the blank, letters, and the most frequent parts of words of 2 to 4 letters.

    Those that begin a word begin with ▁.
    """
    counts: Counter[str] = Counter()
    for word in words:
        marked = f"▁{word}"
        for length in (2, 3, 4, 5):
            counts.update(marked[i : i + length] for i in range(len(marked) - length + 1))
    single = [*LETTERS, *(f"▁{letter}" for letter in LETTERS)]
    return ["▁⁇▁", *single, *(piece for piece, _ in counts.most_common(2 * pieces) if piece not in single)][:pieces]


def pieces_of(word: str, labels: Collection[str]) -> list[str]:
    """A word cut into pieces, the longest first."""
    rest, found = f"▁{word}", []
    while rest:
        length = next(n for n in range(min(5, len(rest)), 0, -1) if rest[:n] in labels)
        found.append(rest[:length])
        rest = rest[length:]
    return found


def piece_logits_of(text: str, labels: list[str], noise: float, random: np.random.Generator) -> np.ndarray:
    """Natural log probabilities of pieces of words; the blank is the last label. (frames, labels) float32

    A piece is taken for another one as often as `noise` says, but hardly ever for the unknown one, which is the first.
    """
    known, blank = {label: i for i, label in enumerate(labels)}, len(labels)
    path = []
    for word in text.split():
        for piece in pieces_of(word, known):
            path += [known[piece]] * int(random.integers(1, 3)) + [blank] * int(random.integers(1, 3))
    scores = random.normal(0.0, 1.0 + noise, (len(path), len(labels) + 1))
    scores[:, 0] -= 5.0  # as in models of speech, which are trained without it
    for frame, label in enumerate(path):
        scores[frame, label] += 8.0
        if label != blank and random.random() < noise:  # another piece is as likely
            scores[frame, int(random.integers(1, blank))] += 7.0 + random.normal(0.0, 1.0)
    scores -= np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return scores.astype(np.float32)
