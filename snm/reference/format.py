"""Models on disk in plain Python: reads every array of docs/format.md and scores one word at a time.

Written from the specification, not from the kernels. A row is found by reading its page, without parents, rounds or
memo. Files that break the specification raise a ValueError. Features of families are not read: they are Python
functions outside the model.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from snm.features.specification import FeatureSpec
from snm.layouts.keys import EMPTY_KEY, MULTIPLIER, KeyLayout
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.reference import paper

Context = Sequence[int]  # token ids, <S> first


def read_model(path: str | Path) -> Model:
    """The model in a folder, after its files were compared with their checksums."""
    path = Path(path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    found = manifest["format"], manifest["version"]
    if found != ("snm-model", 3):
        raise ValueError(f"{path}: {found[0]} version {found[1]}; expected snm-model version 3")
    for name, file in manifest["files"].items():
        data = (path / name).read_bytes()
        if (len(data), hashlib.sha256(data).hexdigest()) != (file["bytes"], file["sha256"]):
            raise ValueError(f"{path / name}: size or checksum differ from the manifest's")
    kinds: dict[str, type[Model]] = {
        "snm": SnmModel, "backoff": BackoffModel, "hsme": NetworkModel, "rnn": NetworkModel, "mixture": MixtureModel,
        "sources": GatedModel, "hybrid": GatedModel,
    }  # fmt: skip
    return kinds[manifest["kind"]](path, manifest)


class Model(ABC):
    """What all kinds of models have: words, arrays and probabilities."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        self.words = self._read_words()
        self.fields = {i: word[1:].split("=")[0] for i, word in enumerate(self.words) if word[0] == "\x01"}
        self.never_targets = {BEGIN, *([UNKNOWN] if manifest["vocabulary"]["closed"] else []), *self.fields}
        self._open()

    def _read_words(self) -> list[str]:
        words = (self.path / "vocabulary.txt").read_bytes().decode().split("\n")[:-1]
        if words[:3] != ["<S>", "</S>", "<UNK>"] or len(words) != self.manifest["vocabulary"]["words"]:
            raise ValueError(f"{self.path}: the vocabulary does not fit the manifest")
        return words

    def _array(self, name: str) -> np.ndarray:
        array: np.ndarray = np.load(self.path / f"{name}.npy", allow_pickle=False)
        return array

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _score(self, context: Context, target: int) -> float: ...

    def probability(self, context: Context, target: int) -> float:
        """P(target | context); 0 of words that are never predicted."""
        return 0.0 if target in self.never_targets else self._score(context, target)

    def distribution(self, context: Context) -> list[float]:
        """P(w | context) of every word w."""
        return [self.probability(context, word) for word in range(len(self.words))]


class RowModel(Model):
    """A model of rows, which are found by the keys of features."""

    def _open(self) -> None:
        self.spec, self.layout = FeatureSpec(self.manifest["features"]), KeyLayout(**self.manifest["layout"])
        if self.spec.families:
            raise ValueError(f"{self.path}: features of families are not read")
        self.classes = self._array("classes").tolist() if self.spec.has_classes else []

    def keys(self, context: Context) -> list[int | None]:
        """The key of each template's feature after a context.

        None where the template has no feature, or the same one as an earlier template.
        """
        keys: list[int | None] = []
        values = {self.fields[word]: word for word in context if word in self.fields}
        context = [word for word in context if word not in self.fields]
        for t in self.spec.templates:
            side = self.spec.types[t.type_index].side
            if side is not None:
                feature = t.type_index, (values.get(side, 0), *context[len(context) - t.a :])
                there = side in values and len(context) >= t.a
                keys.append(paper.key_of(self.spec, self.layout, feature) if there else None)
                continue
            end = len(context) - t.a - t.s  # of the remote words
            remote, adjacent = context[max(0, end - t.r) : max(0, end)], context[len(context) - t.a :]
            if self.spec.types[t.type_index].classes:
                remote = [self.classes[word] for word in remote]
            key = paper.key_of(self.spec, self.layout, (t.type_index, (*remote, *adjacent)))
            keys.append(key if end >= t.r and key not in keys else None)
        return keys

    def type_of(self, key: int) -> int:
        """Type index of a key."""
        return key >> self.layout.type_shift & (1 << self.layout.type_bits) - 1


class Row(NamedTuple):
    """A row of M."""

    count_code: int
    weights: dict[int, float]  # of each target
    row_sum: float
    length: float | None = None  # what the gate sees for the number of links, where that is something else


class StoredRow(NamedTuple):
    """A row as it is stored. Its weight has no code where the feature was seen once: it depends on the type."""

    count_code: int
    codes: dict[int, int | None]  # of each target
    row_sum: float | None  # of rows of more than 8 links


class SnmModel(RowModel):
    """A sparse non-negative matrix and its gate."""

    def _open(self) -> None:
        super()._open()
        pages, words = self.manifest["pages"], len(self.words)
        self.page_bits, self.code_bytes, self.single_types = (
            pages[name] for name in ("bits", "code_bytes", "single_types")
        )
        self.starts, self.data = self._array("starts").tolist(), self._array("data").tobytes()
        self.long_links, self.values = self._array("long_links").tolist(), self._array("values").tolist()
        self.singles = self._array("singles").reshape(len(self.single_types), words)
        unigrams = dict(enumerate(self._array("unigrams").tolist()))
        self.unigrams = Row(pages["unigram_code"], {w: m for w, m in unigrams.items() if m}, sum(unigrams.values()))
        if self.manifest["gate"] is not None:
            n, units = len(self.spec.templates) + len(self.spec.caches), self.manifest["gate"]["units"]
            w, a, v, b = np.split(self._array("gate"), np.cumsum([n * 4 * units, units, n * units]))
            self.gate = w.reshape(n, 4, units), a, v.reshape(n, units), b
        if len(self.starts) != (1 << self.page_bits) + 1 or self.data[self.starts[-1] :] != bytes(256):
            raise ValueError(f"{self.path}: the pages do not fit together")

    def rows(self) -> dict[int, StoredRow]:
        """All rows but the empty feature's, by the bits of their keys that are stored: page number and mark."""
        found: dict[int, StoredRow] = {}
        for number in range(1 << self.page_bits):
            marks, entries, records = self._page(number)
            for mark, entry in zip(marks, entries, strict=True):
                if number << 24 | mark not in found:
                    found[number << 24 | mark] = self._read(entry, records)
        return found

    def row(self, key: int) -> Row | None:
        """The row of a feature, None where it has none."""
        if key == EMPTY_KEY:
            return self.unigrams
        mark = key >> 40 - self.page_bits & 0xFFFFFF
        marks, entries, records = self._page(key >> 64 - self.page_bits)
        if mark not in marks:
            return None
        stored = self._read(entries[marks.index(mark)], records)
        weights = {
            target: self.values[self._single(key, target) if code is None else code]
            for target, code in stored.codes.items()
        }
        return Row(stored.count_code, weights, sum(weights.values()) if stored.row_sum is None else stored.row_sum)

    def _single(self, key: int, target: int) -> int:
        """Weight code of a feature seen once."""
        return int(self.singles[self.single_types.index(self.type_of(key)), target])

    def _page(self, number: int) -> tuple[list[int], list[int], bytes]:
        """Marks, entries and records of a page."""
        page = self.data[self.starts[number] : self.starts[number + 1]]
        n = page[0] if page else 0
        return _numbers(page[1:], n, 3), _numbers(page[1 + 3 * n :], n, 2), page[1 + 5 * n :]

    def _read(self, entry: int, records: bytes) -> StoredRow:
        if entry < 0x8000:
            return StoredRow(0, {entry: None}, None)
        record = records[entry - 0x8000 :]
        count_code, flags = record[:2]
        if flags == 0x80:
            n, row_sum = struct.unpack("<If", record[2:10])
            return StoredRow(count_code, self._long_row(n, int.from_bytes(record[10:16], "little")), row_sum)
        n, target_bytes, at = flags & 0x3F, 4 if flags & 0x40 else 2, 6 if flags & 0x3F > 8 else 2
        stored_sum = struct.unpack("<f", record[2:6])[0] if n > 8 else None
        targets = _numbers(record[at:], n, target_bytes)
        if count_code == 0 and self.single_types:
            return StoredRow(count_code, dict.fromkeys(targets), None)
        codes = _numbers(record[at + n * target_bytes :], n, self.code_bytes)
        return StoredRow(count_code, dict(zip(targets, codes, strict=True)), stored_sum)

    def _long_row(self, n: int, first: int) -> dict[int, int | None]:
        """Codes of a long row's n links, whose first position is `first`."""
        bits, code_bits, lines = (len(self.words) - 1).bit_length(), 8 * self.code_bytes, -(-n // 13)
        factor = int((math.sqrt(5) - 1) / 2 * (1 << bits)) | 1
        inverse, found, end = pow(factor, -1, 1 << bits), dict[int, int | None](), 0
        for link in islice(filter(None, islice(self.long_links, first, None)), n):
            spread, code = link >> code_bits, link & (1 << code_bits) - 1
            position = max(end, 16 * (spread * lines >> bits))
            if self.long_links[first + position : first + position + 1] != [link]:
                raise ValueError(f"{self.path}: a link of the long row at {first} is not in its position")
            found[spread * inverse & (1 << bits) - 1], end = code, position + 1
        last = first + max(16 * lines - 1, end | 15)
        if len(found) != n or self.long_links[last : last + 1] != [0]:
            raise ValueError(f"{self.path}: the long row at {first} does not end as it should")
        return found

    def event_rows(self, context: Context) -> list[Row | None]:
        """The row of each template and each cache after a context, None where there is none."""
        rows = [None if key is None else self.row(key) for key in self.keys(context)]
        caches = self.spec.caches if self.manifest["gate"] is not None else []
        return rows + [self._cache(context, *astuple(cache)) for cache in caches]

    def _cache(self, context: Context, adjacent: int, words: int, half: int) -> Row | None:
        """The words of a context that follow the same `adjacent` words as the target does. The nearest come first."""
        here, weights, end = [], dict[int, float](), len(context)
        for k in range(end - 1, max(0, end - words - 1, adjacent - 1), -1):
            if (
                context[k] not in self.never_targets
                and context[k - adjacent : k] == context[end - adjacent :][:adjacent]
            ):
                here.append((context[k], 0.5 ** ((end - k) / half)))
        mass = sum(weight for _, weight in here)
        for word, weight in here:
            weights[word] = weights.get(word, 0.0) + weight / mass
        return Row(min(255, round(8 * math.log2(len(here)))), weights, 1.0, mass) if here else None

    def scales(self, rows: Sequence[Row | None]) -> list[float]:
        """What the gate multiplies each template's row by: exp(B); 1 without a gate, 0 where there is no row."""
        if self.manifest["gate"] is None:
            return [0.0 if row is None else 1.0 for row in rows]
        inputs = [
            None if row is None else (2 ** (row.count_code / 8), row.length or len(row.weights), row.row_sum)
            for row in rows
        ]
        return paper.gate_weights(inputs, self.gate)

    def _score(self, context: Context, target: int) -> float:
        rows = self.event_rows(context)
        here = [(scale, row) for scale, row in zip(self.scales(rows), rows, strict=True) if row is not None]
        y = sum(scale * row.weights.get(target, 0.0) for scale, row in here)
        return y / sum(scale * row.row_sum for scale, row in here)


class BackoffModel(RowModel):
    """Kneser-Ney, Katz or stupid backoff."""

    def _open(self) -> None:
        super()._open()
        names = ("features", "index", "offsets", "targets", "probabilities", "backoffs")
        self.features, self.index, self.offsets, self.targets, self.probabilities, self.backoffs = (
            self._array(name).tolist() for name in names
        )

    def rows(self) -> dict[int, tuple[float, dict[int, float]]]:
        """{key: (backoff, {target: probability})}"""
        return {key: self._row(i) for i, key in enumerate(self.features)}

    def row(self, key: int) -> tuple[float, dict[int, float]] | None:
        """Backoff and probabilities of a context, None where it has no row."""
        low, shift = self.manifest["index"]["low"], self.manifest["index"]["shift"]
        p = (key - low) >> shift
        if not 0 <= p < len(self.index) - 1:
            return None
        return next((self._row(i) for i in range(*self.index[p : p + 2]) if self.features[i] == key), None)

    def _row(self, i: int) -> tuple[float, dict[int, float]]:
        links = slice(*self.offsets[i : i + 2])
        return self.backoffs[i], dict(zip(self.targets[links], self.probabilities[links], strict=True))

    def _score(self, context: Context, target: int) -> float:
        backoff = 1.0
        for key in reversed(self.keys(context)):
            row = None if key is None else self.row(key)
            if row is not None and target in row[1]:
                return backoff * row[1][target]
            backoff *= 1.0 if row is None else row[0]
        return 0.0


def lacking_words(words: Sequence[str], closed: bool, member: Model) -> list[str]:
    """The words of a union that a member lacks, and `<UNK>` if it alone is closed."""
    own = set(member.words)
    found = [word for word in words if word not in own]
    return found + ["<UNK>"] * (member.manifest["vocabulary"]["closed"] and not closed)


class UnionModel(Model):
    """A model made of others, whose vocabularies may differ."""

    def _read_words(self) -> list[str]:
        self.members = [read_model(self.path / name) for name in self.manifest["members"]]
        has_words = (self.path / "vocabulary.txt").exists()
        return super()._read_words() if has_words else self.members[0].words

    def _open(self) -> None:
        self.ids = [{word: i for i, word in enumerate(member.words)} for member in self.members]
        closed = self.manifest["vocabulary"]["closed"]
        self.lacking = [lacking_words(self.words, closed, member) for member in self.members]

    def member_score(self, i: int, context: Context, target: int) -> float:
        """What a member gives to a word of the union."""
        member, ids, lacking = self.members[i], self.ids[i], self.lacking[i]
        here, word = [ids.get(self.words[token], UNKNOWN) for token in context], self.words[target]
        p = float(member.probability(here, ids.get(word, UNKNOWN)))
        if not lacking:
            return p
        share = float(self.manifest["shares"][i])
        if member.manifest["vocabulary"]["closed"]:
            return share / len(lacking) if word in lacking else (1 - share) * p
        if word in lacking:
            return p * share / len(lacking)
        return p * (1 - share) if target == UNKNOWN else p


class MixtureModel(UnionModel):
    """A weighted sum of models."""

    def _score(self, context: Context, target: int) -> float:
        weights: list[float] = self.manifest["weights"]
        return sum(weight * self.member_score(i, context, target) for i, weight in enumerate(weights))


class GatedModel(UnionModel):
    """SNMs whose rows one gate weighs together, and in a hybrid other models, each of which is one row."""

    def _open(self) -> None:
        super()._open()
        self.order = sorted(range(len(self.members)), key=lambda i: not isinstance(self.members[i], SnmModel))
        n = sum(len(m.spec.templates) if isinstance(m, SnmModel) else 1 for m in self.members)
        if self.manifest["gate"] is not None:
            units = self.manifest["gate"]["units"]
            w, a, v, b = np.split(self._array("gate"), np.cumsum([n * 4 * units, units, n * units]))
            self.gate = w.reshape(n, 4, units), a, v.reshape(n, units), b

    def _score(self, context: Context, target: int) -> float:
        rows: list[Row | None] = []
        weights: list[float] = []
        for i in self.order:
            for row, weight in self._member_rows(i, context, target):
                rows.append(row)
                weights.append(weight)
        scales = [0.0 if row is None else 1.0 for row in rows]
        if self.manifest["gate"] is not None:
            inputs = [None if r is None else (2 ** (r.count_code / 8), len(r.weights), r.row_sum) for r in rows]
            scales = paper.gate_weights(inputs, self.gate)
        y = sum(scale * weight for scale, weight in zip(scales, weights, strict=True))
        return y / sum(scale * row.row_sum for scale, row in zip(scales, rows, strict=True) if row is not None)

    def _member_rows(self, i: int, context: Context, target: int) -> list[tuple[Row | None, float]]:
        """The rows of a member, and what each gives to a word of the union."""
        member, ids, lacking = self.members[i], self.ids[i], self.lacking[i]
        if not isinstance(member, SnmModel):
            p = self.member_score(i, context, target)
            return [(Row(0, {target: p}, 1.0), p)]
        found = member.event_rows([ids.get(self.words[token], UNKNOWN) for token in context])
        word, share, factor = self.words[target], self.manifest["shares"][i], 1.0
        if lacking and not member.manifest["vocabulary"]["closed"]:
            factor = share / len(lacking) if word in lacking else 1 - share if target == UNKNOWN else 1.0
        own = ids.get(word, UNKNOWN)
        return [(row, 0.0 if row is None else factor * row.weights.get(own, 0.0)) for row in found]


class NetworkModel(Model):
    """A recurrent layer, hashed features or both, under one of three outputs."""

    def _open(self) -> None:
        self.shape = self.manifest["network"]
        self.arrays = {name: self._array(name).reshape(shape) for name, shape in self.manifest["arrays"].items()}
        parts = [self.arrays[name] for name in sorted(self.arrays) if name.startswith("vectors.")]
        self.parts = [part.astype(np.float64) for part in parts]

    def _state(self, context: Context) -> np.ndarray:
        h = c = np.zeros(self.shape["hidden"])
        if not self.shape["hidden"]:
            return h
        w_ih, w_hh = (self.arrays[f"layer.weight_{name}_l0"].astype(np.float64) for name in ("ih", "hh"))
        rows = self.arrays["places"][list(context)] if "places" in self.arrays else list(context)
        for x in np.concatenate(self.parts)[rows]:
            z = w_ih @ x + w_hh @ h + self.arrays["layer.bias_ih_l0"] + self.arrays["layer.bias_hh_l0"]
            if self.shape["cell"] == "rnn":
                h = np.tanh(z)
            else:
                enter, forget, cell, output = np.split(z, 4)
                c = _sigmoid(forget) * c + _sigmoid(enter) * np.tanh(cell)
                h = _sigmoid(output) * np.tanh(c)
        return h

    def _score(self, context: Context, target: int) -> float:
        h = self._state(context)
        if self.shape["softmax"] == "tree":
            return self._tree(context, target, h)
        return self._adaptive(target, h) if self.shape["softmax"] == "adaptive" else self._two_level(target, h)

    def _tree(self, context: Context, target: int, h: np.ndarray) -> float:
        p, up = 1.0, int(self.arrays["word_up"][target])
        while up >= 0:
            odds = self._log_odds(up >> 1, context, h)
            p *= float(_sigmoid(odds if up & 1 else -odds))
            up = int(self.arrays["node_up"][up >> 1])
        return p

    def _log_odds(self, node: int, context: Context, h: np.ndarray) -> float:
        """Of side 1 of a node."""
        odds, table = float(self.arrays["starts"][node]), self.arrays["table"]
        if len(h):
            odds += float(self.arrays["nodes"][node].astype(np.float64) @ h)
        for a in range(min(self.shape["order"], len(context) + 1)):
            hashed = paper.mix64(paper._chain(context[len(context) - a :]) ^ paper.mix64(a + 1)) | 1
            slot = (hashed + node * MULTIPLIER) % 2**64 * len(table) >> 64
            odds += float(self.arrays["scales"][a]) * float(table[slot])
        return odds

    def _adaptive(self, target: int, h: np.ndarray) -> float:
        z, biases, tails = self.arrays["projection"].astype(np.float64) @ h, self.arrays["biases"], self.arrays["parts"]
        ends = np.cumsum([len(part) for part in self.parts]).tolist()
        head = np.concatenate([self.parts[0] @ z + biases[: ends[0]], tails[:, :-1] @ z + tails[:, -1]])
        head[list(self.never_targets)] = -math.inf
        if target < ends[0]:
            return float(_softmax(head)[target])
        i = next(i for i, end in enumerate(ends) if target < end)
        scores = self.parts[i] @ z + biases[ends[i - 1] : ends[i]]
        return float(_softmax(head)[ends[0] + i - 1] * _softmax(scores)[target - ends[i - 1]])

    def _two_level(self, target: int, h: np.ndarray) -> float:
        z, classes, starts = self.arrays["projection"].astype(np.float64) @ h, *(
            self.arrays[name] for name in ("class_vectors", "class_starts")
        )  # fmt: skip
        places = self.arrays["places"]
        scores = classes[:, :-1].astype(np.float64) @ z + classes[:, -1]
        class_of = {place: c for c in range(len(classes)) for place in range(starts[c], starts[c + 1])}
        scores[[class_of[places[word]] for word in self.never_targets]] = -math.inf
        c = class_of[places[target]]
        own = self.parts[0][starts[c] : starts[c + 1]] @ z + self.arrays["biases"][starts[c] : starts[c + 1]]
        return float(_softmax(scores)[c] * _softmax(own)[places[target] - starts[c]])


def _numbers(data: bytes, n: int, size: int) -> list[int]:
    """The first n little-endian numbers of `size` bytes."""
    if len(data) < n * size:
        raise ValueError(f"{len(data)} bytes left of a page; expected {n} numbers of {size} bytes")
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, n * size, size)]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    made: np.ndarray = powers / powers.sum()
    return made
