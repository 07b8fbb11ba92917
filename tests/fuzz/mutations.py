"""Changes of models and ARPA files, at random.

A model is a dictionary of its files by name. Its checksums are made right again most of the time: whoever changes a
file can change its checksum.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

import numpy as np

from snm import storage
from snm.layouts.counts import CHUNK
from snm.reference.counts import checksum


class Special(Enum):
    """What stands in place of a file."""

    MISSING = "missing"
    FOLDER = "a folder"
    PIPE = "a pipe"
    ZEROS = "a link to /dev/zero"
    LOOP = "a link to itself"
    ABOVE = "a link to the folder above"
    OUTSIDE = "a link to a file outside"
    HOLES = "a huge file of holes"


Files = dict[str, bytes | Special]
MANIFEST, HEADER = storage.MANIFEST, storage.NPY_HEADER
NUMBERS = [0, 1, -1, 2, 3, 7, 16, 63, 64, 65, 255, 256, 1 << 15, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40,
           1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, -(1 << 31), -(1 << 63)]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, "", "x", [], {}, [1], [[]], {"a": 1}, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"),
    "\n", "\x00", "\ud800", "\u202e", "../x", "/etc/passwd", "a" * 3000, "9" * 5000, list(range(500)),
    [["x"] * 9] * 9, "ngram(0..4)", "ngram(0..9) + skip(r=1..32, s=1..1000, a=0..32)", "cache(a=0..32, words=16384)",
    "class(r=1, a=0)", "family(x)", "side(speaker)", "characters", "bytes", "sentencepiece", "snm", "backoff", "hsme",
    "rnn", "mixture", "sources", "hybrid", "member0", "member1", "tree", "adaptive", "classes", "lstm", "union",
]  # fmt: skip
DTYPES = ["<f4", "<f8", "<f2", "<u4", "<u8", "<u2", "|u1", "|i1", "<i4", "<i8", ">f4", ">u4", "|O", "|V4", "|b1", "<c8",
          "<U1", "|S4", "<M8", "x", "(4,)<f4"]  # fmt: skip


@dataclass
class Mutant:
    """A changed model and what was done to it."""

    files: Files
    done: list[str]


def mutate(random: Random, files: dict[str, bytes], others: list[dict[str, bytes]]) -> Mutant:
    """`others`: models whose files may take the place of this one's."""
    made, changes = Mutant(dict(files), []), random.choice((1, 1, 1, 2, 3))
    while len(made.done) < changes:
        change = random.choices([c for c, _ in CHANGES], [weight for _, weight in CHANGES])[0]
        with suppress(AttributeError, LookupError, RecursionError, TypeError, ValueError):  # damaged already, or empty
            change(random, made, others)
    if random.random() < 0.9:
        reseal(made.files)
    else:
        made.done.append("checksums as they were")
    return made


def pick(random: Random, made: Mutant, suffixes: tuple[str, ...]) -> tuple[str, bytes]:
    """One of the files with such a name that are still files."""
    found = sorted(name for name, data in made.files.items() if name.endswith(suffixes) and isinstance(data, bytes))
    name = random.choice(found)
    data = made.files[name]
    assert isinstance(data, bytes)
    return name, data


# ---------------------------------------------------------------------------------------------
# arrays


def change_values(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """Some numbers of an array, its header as it was."""
    name, data = pick(random, made, (".npy",))
    dtype, header, body = _opened(data)
    how = random.choice((_flip_bits, _fill_range, _set_values, _set_values, _near_values, _rearrange, _repeat))
    changed = how(random, bytearray(body), dtype)
    made.files[name] = header + bytes(changed)
    made.done.append(f"{name}: {how.__name__}")


def _opened(data: bytes) -> tuple[np.dtype[Any], bytes, bytes]:
    """(dtype, header, numbers) of an array; of bytes, if it is none."""
    with suppress(Exception):
        length = 10 + int.from_bytes(data[8:10], "little")
        described = ast.literal_eval(data[10:length].decode())["descr"]
        dtype = np.dtype([tuple(field) for field in described] if isinstance(described, list) else described)
        return dtype, data[:length], data[length:]
    return np.dtype("|u1"), data[:HEADER], data[HEADER:]


def _span(random: Random, length: int) -> tuple[int, int]:
    start = random.randrange(length)
    return start, min(length, start + random.choice((1, 2, 8, 64, length)))


def _flip_bits(random: Random, body: bytearray, dtype: np.dtype[Any]) -> bytearray:
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        body[random.randrange(len(body))] ^= 1 << random.randrange(8)
    return body


def _fill_range(random: Random, body: bytearray, dtype: np.dtype[Any]) -> bytearray:
    start, stop = _span(random, len(body))
    kind = random.randrange(4)
    fill = random.randbytes(stop - start) if kind < 2 else bytes([0 if kind == 2 else 255]) * (stop - start)
    body[start:stop] = fill
    return body


def _numbers(body: bytearray, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.fields:
        dtype = np.dtype(np.int64)
    return np.frombuffer(body, dtype, len(body) // dtype.itemsize)


def _set_values(random: Random, body: bytearray, dtype: np.dtype[Any]) -> bytearray:
    """Extreme values, and values near the length."""
    values = _numbers(body, dtype)
    start, stop = _span(random, len(values))
    if dtype.kind == "f":
        values[start:stop] = random.choice((0.0, -1.0, np.nan, np.inf, -np.inf, 1e30, 1e-38, -1e30))
        return body
    extreme = [*NUMBERS, len(values), len(values) - 1, len(values) + 1, stop - start]
    value = random.choice(extreme) % (1 << 8 * values.itemsize)
    values[start:stop] = np.array([value], f"<u{values.itemsize}").view(values.dtype)[0]
    return body


def _near_values(random: Random, body: bytearray, dtype: np.dtype[Any]) -> bytearray:
    """Values that are a little larger or smaller than they were."""
    values = _numbers(body, dtype)
    start, stop = _span(random, len(values))
    by = random.choice((1, 2, 15, 255))
    with np.errstate(all="ignore"):
        values[start:stop] = values[start:stop] + values.dtype.type(by) if random.random() < 0.5 else (
            values[start:stop] - values.dtype.type(by)
        )  # fmt: skip
    return body


def _rearrange(random: Random, body: bytearray, dtype: np.dtype[Any]) -> bytearray:
    values = _numbers(body, dtype)
    how = random.randrange(4)
    if how == 0:
        values[:] = values[::-1].copy()
    elif how == 1:
        values[:] = np.roll(values, random.choice((1, -1, 7, len(values) // 2)))
    elif how == 2:
        values[:] = np.sort(values)
    else:
        np.random.default_rng(random.getrandbits(32)).shuffle(values)
    return body


def _repeat(random: Random, body: bytearray, dtype: np.dtype[Any]) -> bytearray:
    """One part copied over another."""
    size = min(len(body), random.choice((1, 4, 8, 16, 64, 256)))
    source, target = (random.randrange(len(body) - size + 1) for _ in range(2))
    body[target : target + size] = body[source : source + size]
    return body


def change_length(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """An array that is longer or shorter, with its header or without."""
    name, data = pick(random, made, (".npy",))
    dtype, header, body = _opened(data)
    size, n = dtype.itemsize, len(body) // max(1, dtype.itemsize)
    length = random.choice((0, 1, n - 1, n + 1, n // 2, 2 * n, n + 16, n + 64, random.randrange(2 * n + 2)))
    length = max(0, length)
    more = random.choice((bytes(size), random.randbytes(size), body[:size] or bytes(size)))
    body = (body + more * max(0, length - n))[: length * size]
    if random.random() < 0.8:
        header = header.replace(f"({n},)".encode(), f"({length},)".encode())
        header = header.rstrip(b" \n")[:127].ljust(127) + b"\n"
    made.files[name] = header + body
    made.done.append(f"{name}: {n} numbers become {length}")


def change_header(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """Another dtype, another shape, a header that is none."""
    name, data = pick(random, made, (".npy",))
    dtype, header, body = _opened(data)
    n = len(body) // max(1, dtype.itemsize)
    shape = random.choice((f"({n},)", f"({n},)", f"({n},)", f"(1, {n})", f"({n}, 1)", "()", f"(-{n},)", f"({10**30},)",
                           f"({1 << 40},)", f"({n}, 0)", f"[{n}]", "(0,)"))  # fmt: skip
    descr = random.choice((repr(dtype.str), repr(random.choice(DTYPES)), "[('a', '<f4')]", "[[[("))
    order = random.choice(("False", "False", "True", "1"))
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    changed = data[:10] + text.ljust(117) + b"\n"
    kind = random.randrange(5)
    if kind == 0:
        changed = header[: random.randrange(len(header))]
    elif kind == 1:
        changed = bytes(_flip_bits(random, bytearray(header), dtype))
    made.files[name] = changed + body
    made.done.append(f"{name}: another header")


def swap_files(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """A file of another name, or of another model, in place of one."""
    name, _ = pick(random, made, (".npy", ".txt", ".json"))
    other = random.choice([{n: d for n, d in made.files.items() if isinstance(d, bytes)}, random.choice(others)])
    same = [n for n in other if PurePosixPath(n).name == PurePosixPath(name).name]
    source = random.choice(sorted(same) if same and random.random() < 0.5 else sorted(other))
    made.files[name] = other[source]
    made.done.append(f"{name}: {source} of this or another model")


# ---------------------------------------------------------------------------------------------
# text and manifests


def change_text(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    name, data = pick(random, made, (".txt", ".model", "tokenizer.json"))
    made.files[name] = _changed_text(random, data)
    made.done.append(f"{name}: text")


def _changed_text(random: Random, data: bytes) -> bytes:
    lines, kind = data.splitlines(keepends=True), random.randrange(9)
    at = random.randrange(len(lines))
    if kind == 0:
        return bytes(_flip_bits(random, bytearray(data), np.dtype("|u1")))
    if kind == 1:
        return data[: random.randrange(len(data))]
    if kind == 2:
        lines.insert(at, random.choice(lines))
    elif kind == 3:
        del lines[at]
    elif kind == 4:
        lines[at] = random.choice(
            (b"\n", b"\n\n", b" \n", b"\x00\n", b"\xff\xfe\n", b"\x01a=\n", b"\x01a=b\n", b"a b\n")
        )
    elif kind == 5:
        lines[at] = random.randbytes(random.choice((1, 10, 1000))) + b"\n"
    elif kind == 6:
        lines.reverse()
    elif kind == 7:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        return random.choice((b"", b"\n", b"\n" * len(lines), b"x" * len(data), data + data))
    return b"".join(lines)


def change_manifest(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """One entry of a manifest, or of a description of counts."""
    name, data = pick(random, made, (MANIFEST, "counts.json"))
    manifest = json.loads(data)
    at = random.choice([p for p in _places(manifest) if p[0] != "files" or random.random() < 0.1] or [("kind",)])
    inner = manifest
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value = _other_value(random, inner.get(at[-1]) if isinstance(inner, dict) else inner[at[-1]])
    if value is ...:
        del inner[at[-1]]
    made.files[name] = _dumped(manifest)
    made.done.append(f"{name}: {'.'.join(map(str, at))} = {str(value)[:40]!r}")


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all entries of a JSON value; of a long list, some."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value))
    found = []
    for key, part in inner if isinstance(value, dict) else inner[:4]:
        found.append((*at, key))
        if isinstance(part, dict | list):
            found += _places(part, (*at, key))
    return found


def _other_value(random: Random, value: Any) -> Any:
    kind = random.randrange(6)
    if kind == 0:
        return ...
    if isinstance(value, int | float) and kind < 4:
        return random.choice((value + 1, value - 1, -value, 2 * value, random.choice(NUMBERS), float(value)))
    if isinstance(value, list) and value and kind < 4:
        return random.choice((value[1:], value[:-1], value * 2, value[::-1], [*value, random.choice(OTHERS)],
                              [random.choice([*NUMBERS, *OTHERS]), *value[1:]]))  # fmt: skip
    if isinstance(value, str) and value and kind < 3:
        at = random.randrange(len(value))
        return value[:at] + random.choice(("", "9", " ", "x", "\n", "é", "*", "..", value)) + value[at + 1 :]
    return random.choice([*NUMBERS, *OTHERS])


def extend_manifest(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """Entries that another kind of model has, or that list files."""
    name, data = pick(random, made, (MANIFEST,))
    manifest, other = json.loads(data), json.loads(random.choice(others)[MANIFEST])
    kind = random.randrange(5)
    if kind == 0:
        key = random.choice(sorted(other))
        manifest[key] = other[key]
    elif kind == 1:
        manifest["requires"] = random.choice((["cache"], ["union", "fields"], ["x"], "cache", [["cache"]], [], None))
    elif kind == 2:
        manifest["files"][random.choice(("../x", "/etc/passwd", "a/../../b", "", ".", "x" * 5000, "\x00", "a\nb"))] = {
            "bytes": random.choice((0, 1, -1, 10**30, None)), "sha256": "",
        }  # fmt: skip
    elif kind == 3:
        manifest["tokenizer"] = random.choice(({"kind": "bytes", "sha256": ""}, {"kind": "characters", "sha256": "x"},
                                               {"kind": "huggingface", "sha256": "x"}, "bytes", {}))  # fmt: skip
    else:
        spelling = {"order": random.choice((2, 6, 7, 0)), "words": random.choice((0, 1, 3)), "known": 0.5}
        manifest["spelling"] = spelling
        folder = str(PurePosixPath(name).parent / "spelling.txt")
        made.files[folder] = random.choice((b"", b"a\n", b"\n\n\n", b"a\nb\xff\nc\n", b"a b\n\x00\nc\n"))
    made.files[name] = _dumped(manifest)
    made.done.append(f"{name}: extended, {kind}")


def damage_manifest(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """A manifest that is no JSON, or JSON of another kind."""
    name, data = pick(random, made, (MANIFEST, "counts.json"))
    made.files[name] = random.choice((
        bytes(_flip_bits(random, bytearray(data), np.dtype("|u1"))), data[: random.randrange(len(data))], b"[" * 99999,
        b'{"a":' * 3000, b"{}", b"[]", b"null", b"7", b"", b"\xff\xfe", b'{"files": 1' + b"0" * 9999 + b"}",
        data.replace(b"{", b'{"format": "snm-model", ', 1), data + data,
    ))  # fmt: skip
    made.done.append(f"{name}: damaged")


def _dumped(manifest: Any) -> bytes:
    return f"{json.dumps(manifest, indent=1)}\n".encode()


# ---------------------------------------------------------------------------------------------
# files and folders


def replace_file(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """A link, a pipe or nothing in place of a file; or a file too many."""
    name, _ = pick(random, made, (".npy", ".txt", ".json"))
    special = random.choice(list(Special))
    made.files[name] = special
    if random.random() < 0.3:  # a manifest that does not list it
        folder = next((f for f in PurePosixPath(name).parents if str(f / MANIFEST) in made.files), PurePosixPath())
        data = made.files.get(str(folder / MANIFEST))
        if isinstance(data, bytes):
            manifest = json.loads(data)
            manifest["files"].pop(str(PurePosixPath(name).relative_to(folder)), None)
            made.files[str(folder / MANIFEST)] = _dumped(manifest)
    made.done.append(f"{name}: {special.value}")


def replace_member(random: Random, made: Mutant, others: list[dict[str, bytes]]) -> None:
    """Another model, or a link, in place of a folder of a model; more members than there were."""
    folders = sorted({name.split("/")[0] for name in made.files if "/" in name})
    folder = random.choice(folders)
    kind = random.randrange(3)
    if kind == 0:
        manifest = json.loads(pick(random, made, (MANIFEST,))[1])
        manifest = json.loads(made.files[MANIFEST])  # type: ignore[arg-type]
        names = manifest["members"]
        manifest["members"] = random.choice((names * 2, names[::-1], names[:1], [*names, "."], names * 500))
        for entry in ("weights", "shares", "names"):
            if isinstance(manifest.get(entry), list) and random.random() < 0.8:
                times = -(-len(manifest["members"]) // max(1, len(manifest[entry])))
                manifest[entry] = (manifest[entry] * times)[: len(manifest["members"])]
        made.files[MANIFEST] = _dumped(manifest)
        made.done.append("other members")
        return
    for name in [name for name in made.files if name.startswith(f"{folder}/")]:
        del made.files[name]
    if kind == 1:
        made.files[folder] = random.choice((Special.ABOVE, Special.LOOP, Special.PIPE))
        made.done.append(f"{folder}: {made.files[folder]!r}")
        return
    for name, data in random.choice(others).items():
        made.files[f"{folder}/{name}"] = data
    made.done.append(f"{folder}: another model")


CHANGES: list[tuple[Callable[[Random, Mutant, list[dict[str, bytes]]], None], int]] = [
    (change_values, 50), (change_length, 10), (change_header, 5), (swap_files, 6), (change_text, 6),
    (change_manifest, 16), (extend_manifest, 3), (damage_manifest, 2), (replace_file, 3), (replace_member, 3),
]  # fmt: skip


# ---------------------------------------------------------------------------------------------
# checksums


def reseal(files: Files) -> None:
    """Make the sizes and checksums of all manifests right, the innermost first."""
    for name in sorted((n for n in files if PurePosixPath(n).name == "counts.json"), key=len, reverse=True):
        with suppress(Exception):
            _reseal_counts(files, str(PurePosixPath(name).parent))
    for name in sorted((n for n in files if PurePosixPath(n).name == MANIFEST), key=len, reverse=True):
        with suppress(Exception):
            folder = PurePosixPath(name).parent
            manifest = json.loads(files[name])  # type: ignore[arg-type]
            manifest.pop(storage.CHECKSUM, None)
            for listed, entry in manifest["files"].items():
                data = files.get(str(folder / listed))
                if isinstance(data, bytes):
                    entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            files[name] = storage.sealed(manifest)


def _reseal_counts(files: Files, folder: str) -> None:
    """The same of counts, whose chunks have checksums of their own."""
    chunks, codes = files[f"{folder}/chunks.npy"], files[f"{folder}/codes.npy"]
    if isinstance(chunks, bytes) and isinstance(codes, bytes):
        dtype, header, body = _opened(chunks)
        words, at = np.frombuffer(codes[HEADER:], "<u8"), 0
        records = np.frombuffer(bytearray(body), dtype)
        for record in records if dtype == CHUNK else ():
            record["checksum"] = checksum(words[at : at + max(0, int(record["words"]))].tolist())
            at += int(record["words"])
        files[f"{folder}/chunks.npy"] = header + records.tobytes()
    described = json.loads(files[f"{folder}/counts.json"])  # type: ignore[arg-type]
    for name, entry in described["files"].items():
        data = files[f"{folder}/{name}"]
        if isinstance(data, bytes):
            entry.update({"sha256": hashlib.sha256(data).hexdigest()} if "sha256" in entry else {"bytes": len(data)})
    files[f"{folder}/counts.json"] = _dumped(described)


# ---------------------------------------------------------------------------------------------
# ARPA files

TOKENS = [
    b"nan", b"inf", b"-inf", b"1e999", b"-1e999", b"1e-999", b"0", b"-0", b"1", b"0x10", b"1_0", b"--1", b"1e", b"e5",
    b"", b"-99", b"99", b"1e308", b"<s>", b"</s>", b"<unk>", b"<UNK>", b"\xff", b"\x00", b"9" * 400, b"-1." + b"9" * 40,
    b"\xe2\x80\xa8", b"\xc2\xa0", b"ngram 1=5", b"\\data\\", b"\\end\\", b"\\2-grams:", b"\\33-grams:", b"a b",
]  # fmt: skip


def mutate_arpa(random: Random, data: bytes) -> Mutant:
    """An ARPA file with some changes."""
    done = []
    for _ in range(random.choice((1, 1, 2, 4))):
        change = random.choice((_change_token, _change_token, _change_header_line, _change_lines, _change_bytes))
        if data:
            data = change(random, data)
            done.append(change.__name__)
    return Mutant({"m.arpa": data}, done)


def _change_token(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    parts = lines[at].replace(b" ", b"\t \t").split(b"\t")
    part = random.randrange(len(parts))
    other = random.choice(random.choice(lines).replace(b" ", b"\t").split(b"\t"))
    parts[part] = random.choice((random.choice(TOKENS), other, parts[part] + b"9", parts[part][1:], b"x" * 100_000))
    lines[at] = b"\t".join(parts).replace(b"\t \t", b" ")
    return b"\n".join(lines)


def _change_header_line(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(min(8, len(lines)))
    number = random.choice((0, 1, 10, 10**6, 10**12, 10**17, 10**18, 10**30, -1))
    lines[at] = random.choice((b"ngram %d=%d" % (random.randrange(40), number), lines[at] + b"1", b"", b"ngram 1=x"))
    return b"\n".join(lines)


def _change_lines(random: Random, data: bytes) -> bytes:
    return _changed_text(random, data)


def _change_bytes(random: Random, data: bytes) -> bytes:
    body = bytearray(data)
    kind = random.randrange(4)
    if kind == 0:
        return bytes(_flip_bits(random, body, np.dtype("|u1")))
    if kind == 1:
        return bytes(_repeat(random, body, np.dtype("|u1")))
    if kind == 2:
        return bytes(_fill_range(random, body, np.dtype("|u1")))
    return data.replace(*random.choice(((b"\t", b" "), (b"\n", b"\r\n"), (b" ", b"\t"), (b"-", b""), (b"\n\n", b"\n"))))


# ---------------------------------------------------------------------------------------------
# folders


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of a model."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
