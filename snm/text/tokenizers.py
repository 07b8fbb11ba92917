"""Tokenizers: what divides a line into the words of a model, where white space is not enough.

A piece of a tokenizer is what the rest of the package calls a word. A divided line has its pieces with spaces between
them, so white space inside of a piece is written with visible symbols. `None` stands for white space itself, wherever
a tokenizer is expected. The reference of characters and bytes is `snm.reference.tokenizers`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from snm.arguments import shown
from snm.errors import FormatError, InputError, MissingExtra, SettingsError
from snm.storage import read_file

WHITE_SPACE = "whitespace"  # the name of no tokenizer
MAX_BYTES = 256 << 20  # of a tokenizer's file
SPACE = "▁"  # in pieces of characters, as SentencePiece has it
ESCAPE = "␛"  # before a symbol of the text itself
_SYMBOLS = {" ": "␠", "\t": "␉", "\n": "␊", "\v": "␋", "\f": "␌", "\r": "␍"}
_LITERALS = "".join(_SYMBOLS.values()) + ESCAPE
_ESCAPES = str.maketrans({**_SYMBOLS, **{symbol: ESCAPE + symbol for symbol in _LITERALS}})
_RARE = re.compile(f"[\t\v\f\r{_LITERALS}]")
_ESCAPED = re.compile(f"{ESCAPE}(.)|([{_LITERALS}])", re.DOTALL)
_MEANING = {symbol: character for character, symbol in _SYMBOLS.items()}
_BLANK = " \t\v\f\r"
_BLANK_LINE = re.compile(rb"^[ \t\v\f\r]+$", re.MULTILINE)


class Tokenizer(ABC):
    """Divides lines into pieces, and joins pieces to text. Lines of white space alone have no pieces.

    Two tokenizers are equal if they are of one kind and have the same file.
    """

    kind: ClassVar[str]
    file: ClassVar[str | None] = None
    """The name of its file in a model folder; None if it has none."""
    alphabet: ClassVar[tuple[str, ...] | None] = None
    """All pieces that there can be, if they are known beforehand: then they are the vocabulary."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and (self.kind, self.data) == (other.kind, other.data)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return self.kind if self.file is None else f"{self.kind} {self.fingerprint[:12]}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of its file."""
        return hashlib.sha256(self.data).hexdigest()

    def check(self) -> None:  # noqa: B027
        """Raise an error if its file is damaged, or a package is missing."""

    @abstractmethod
    def divide(self, block: bytes, threads: int = 1) -> bytes:
        """Lines of UTF-8, each with a line feed, to as many lines of pieces with spaces between them."""

    @abstractmethod
    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces."""

    def pieces(self, line: str) -> list[str]:
        """The pieces of a line of text."""
        divided = self.divide(line.replace("\n", " ").encode() + b"\n")
        return [piece for piece in divided.decode()[:-1].split(" ") if piece]


# ---------------------------------------------------------------------------------------------
# characters and bytes

# bytes that UTF-8 never has stand for what has a symbol, until characters are separated
_CHARACTERS = {" ": SPACE, "\t": "␉", "\v": "␋", "\f": "␌", "\r": "␍"}
_TEXT_SYMBOLS = (*_CHARACTERS.values(), ESCAPE)
_STAND_INS = b"\xc0\xc1\xf5\xf6\xf7", b"\xf8\xf9\xfa\xfb\xfc\xfd"


class Characters(Tokenizer):
    """Each character is a piece; a space is `▁`. Text is got back exactly."""

    kind = "characters"

    def divide(self, block: bytes, threads: int = 1) -> bytes:
        block = _without_blank_lines(block)
        for symbol, byte in zip(_TEXT_SYMBOLS, _STAND_INS[1], strict=True):
            block = block.replace(symbol.encode(), bytes([byte]))
        for character, byte in zip(_CHARACTERS, _STAND_INS[0], strict=True):
            block = block.replace(character.encode(), bytes([byte]))
        block = _separated(np.frombuffer(block, np.uint8))
        for symbol, byte in zip(_TEXT_SYMBOLS, _STAND_INS[1], strict=True):
            block = block.replace(bytes([byte]), (ESCAPE + symbol).encode())
        for symbol, byte in zip(_CHARACTERS.values(), _STAND_INS[0], strict=True):
            block = block.replace(bytes([byte]), symbol.encode())
        return block

    def join(self, pieces: Sequence[str]) -> str:
        return "".join(map(self._text_of, pieces))

    def _text_of(self, piece: str) -> str:
        if len(piece) == 2 and piece[0] == ESCAPE:
            return piece[1]
        return _OF_SYMBOL.get(piece, piece)


_OF_SYMBOL = {symbol: character for character, symbol in _CHARACTERS.items()}


def _separated(data: np.ndarray) -> bytes:
    """Text with a space before each character. Line feeds are no characters."""
    first = (data & 0xC0) != 0x80
    first &= data != 10
    at = np.cumsum(first, dtype=np.int64)
    at += np.arange(len(data))
    out = np.full(len(data) + int(np.count_nonzero(first)), 32, np.uint8)
    out[at] = data
    return out.tobytes()


def _byte_pieces() -> tuple[str, ...]:
    """A visible character for each byte: printable ones stand for themselves, as in GPT-2's tokenizer."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in visible else next(others)) for byte in range(256))


class Bytes(Tokenizer):
    """Each byte is a piece, so no text has unknown words. Text is got back exactly."""

    kind = "bytes"
    alphabet = _byte_pieces()
    _codes = np.array([ord(piece) for piece in alphabet], np.uint16)
    _bytes: ClassVar[dict[str, bytes]] = {piece: bytes([byte]) for byte, piece in enumerate(alphabet)}

    def divide(self, block: bytes, threads: int = 1) -> bytes:
        data = np.frombuffer(_without_blank_lines(block), np.uint8)
        codes = self._codes[data]
        codes[data == 10] = 10
        sizes = 2 + (codes > 127)  # a space, and one or two bytes of UTF-8
        sizes[data == 10] = 1
        ends = np.cumsum(sizes, dtype=np.int64)
        out = np.full(int(ends[-1]) if len(ends) else 0, 32, np.uint8)
        two = codes > 127
        out[ends - 1] = np.where(two, 0x80 | codes & 0x3F, codes)
        out[ends[two] - 2] = 0xC0 | codes[two] >> 6
        return out.tobytes()

    def join(self, pieces: Sequence[str]) -> str:
        """Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._bytes.get(piece) or piece.encode() for piece in pieces).decode(errors="replace")


def _without_blank_lines(block: bytes) -> bytes:
    """Lines of white space alone become empty, and a carriage return before a line feed is left out."""
    if b"\r\n" in block:
        block = block.replace(b"\r\n", b"\n")
    blank = _BLANK.encode()
    if block[:1] in (b" ", b"\t", b"\v", b"\f", b"\r") or any(b"\n" + blank[i : i + 1] in block for i in range(5)):
        return _BLANK_LINE.sub(b"", block)
    return block


# ---------------------------------------------------------------------------------------------
# tokenizers of other packages


class _Packaged(Tokenizer):
    """A tokenizer with a file, which a package of its own reads."""

    @abstractmethod
    def _divided(self, lines: list[str], threads: int) -> list[list[str]]:
        """The pieces of each line."""

    @abstractmethod
    def _joined(self, pieces: list[str]) -> str: ...

    def divide(self, block: bytes, threads: int = 1) -> bytes:
        lines = block.decode().replace("\r\n", "\n").split("\n")[:-1]
        full = [i for i, line in enumerate(lines) if line.strip(_BLANK)]
        made = [""] * len(lines)
        pieces = self._divided([lines[i] for i in full], threads)
        for i, some in zip(full, pieces, strict=True):
            made[i] = " ".join(some)
        spaces = sum(len(some) - 1 for some in pieces if some)
        text = "\n".join(made) + "\n"
        if text.count(" ") != spaces or text.count("\n") != len(lines) or _RARE.search(text):
            for i, some in zip(full, pieces, strict=True):
                made[i] = " ".join(piece.translate(_ESCAPES) for piece in some)
            text = "\n".join(made) + "\n"
        return text.encode() if lines else b""

    def join(self, pieces: Sequence[str]) -> str:
        return self._joined([_ESCAPED.sub(_unescaped, piece) for piece in pieces])


def _unescaped(match: re.Match[str]) -> str:
    return match[1] if match[2] is None else _MEANING.get(match[2], match[2])


class SentencePiece(_Packaged):
    """A model of SentencePiece. Characters that it does not know are pieces as they are."""

    kind = "sentencepiece"
    file = "tokenizer.model"

    @cached_property
    def _processor(self) -> Any:
        try:
            import sentencepiece
        except ImportError:
            raise MissingExtra("sentencepiece", "sentencepiece", "a tokenizer of SentencePiece") from None
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=self.data)
        except Exception:  # its message names a line of its source
            processor = None
        if processor is None or not processor.get_piece_size():
            raise InputError("the tokenizer is no model of SentencePiece, or it is damaged")
        return processor

    def check(self) -> None:
        self._processor.encode("a", out_type=str)

    def _divided(self, lines: list[str], threads: int) -> list[list[str]]:
        divided: list[list[str]] = self._processor.encode(lines, out_type=str, num_threads=threads)
        return divided

    def _joined(self, pieces: list[str]) -> str:
        return str(self._processor.decode(pieces))


class HuggingFace(_Packaged):
    """A tokenizer of Hugging Face's package. What it does not know is a piece as it is, not its unknown token."""

    kind = "huggingface"
    file = "tokenizer.json"

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer as Tokens
        except ImportError:
            raise MissingExtra("tokenizers", "tokenizers", "a tokenizer of Hugging Face") from None
        try:
            tokenizer = Tokens.from_buffer(self.data)
        except BaseException as error:  # a panic of Rust is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            raise InputError(f"the tokenizer is none of Hugging Face, or it is damaged ({shown(error)})") from None
        tokenizer.no_truncation()  # files are often saved with a length for a network
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _unknown(self) -> int | None:
        """The id of the unknown token."""
        model = json.loads(self.data)["model"]
        named: str | None = model.get("unk_token")
        number: int | None = model.get("unk_id") if named is None else self._tokenizer.token_to_id(named)
        return number

    def check(self) -> None:
        self._divided(["a"], 1)

    def _divided(self, lines: list[str], threads: int) -> list[list[str]]:
        encoded = self._tokenizer.encode_batch(lines, add_special_tokens=False)  # the fast one makes no strings
        unknown = self._unknown
        return [
            one.tokens if unknown is None or unknown not in one.ids else _as_written(line, one, unknown)
            for line, one in zip(lines, encoded, strict=True)
        ]

    def _joined(self, pieces: list[str]) -> str:
        decoder = self._tokenizer.decoder
        return " ".join(pieces) if decoder is None else str(decoder.decode(pieces))


def _as_written(line: str, encoded: Any, unknown: int) -> list[str]:
    """The pieces of a line, with its own characters where the tokenizer knows none."""
    parts = zip(encoded.tokens, encoded.ids, encoded.offsets, strict=True)
    made = [line[slice(*span)] if number == unknown else token for token, number, span in parts]
    return [piece for piece in made if piece]


# ---------------------------------------------------------------------------------------------
# opening

_PLAIN: dict[str, type[Tokenizer]] = {kind.kind: kind for kind in (Characters, Bytes)}
_PACKAGED: dict[str, type[_Packaged]] = {kind.kind: kind for kind in (SentencePiece, HuggingFace)}
KINDS = (*_PLAIN, *_PACKAGED)


def open_tokenizer(named: str | os.PathLike[str] | Tokenizer | None) -> Tokenizer | None:
    """The tokenizer of this name or in this file, validated; None for white space."""
    if named is None or isinstance(named, Tokenizer):
        return named
    if not isinstance(named, str | os.PathLike) or not os.fspath(named):
        raise SettingsError(f"tokenizer is {shown(named)}; expected {_EXPECTED}")
    if named == WHITE_SPACE:
        return None
    if named in _PLAIN:
        return _PLAIN[str(named)]()
    path = Path(named)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the tokenizer {str(path)[:200]}: {why}; expected {_EXPECTED}") from error
    if not data or len(data) > MAX_BYTES:
        raise InputError(f"the tokenizer {path} has {len(data):,} bytes; expected {_EXPECTED}")
    tokenizer: Tokenizer = (HuggingFace if data.lstrip()[:1] == b"{" else SentencePiece)(data)
    try:
        tokenizer.check()
    except InputError as error:
        raise InputError(f"{str(path)[:200]}: {error}; expected {_EXPECTED}") from error
    return tokenizer


_EXPECTED = f"{', '.join(_PLAIN)}, {WHITE_SPACE}, a model of SentencePiece, or a tokenizer.json of Hugging Face"


def write_tokenizer(tokenizer: Tokenizer | None, folder: Path) -> None:
    """Write its file, if it has one, to a folder."""
    if tokenizer is not None and tokenizer.file is not None:
        (folder / tokenizer.file).write_bytes(tokenizer.data)


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, str]:
    """Its entry of a manifest."""
    return {"kind": tokenizer.kind, "sha256": tokenizer.fingerprint}


def read_tokenizer(folder: Path, described: dict[str, str], remedy: str) -> Tokenizer:
    """The tokenizer of a folder with this entry of the manifest. Its package is imported when it is used."""
    kind = described["kind"]
    if kind in _PLAIN:
        return _PLAIN[kind]()
    if kind not in _PACKAGED:
        raise FormatError(f"{folder} has a tokenizer of kind {shown(kind)}; this program knows {', '.join(KINDS)}")
    path = folder / str(_PACKAGED[kind].file)
    tokenizer = _PACKAGED[kind](read_file(path, MAX_BYTES))
    if tokenizer.fingerprint != described["sha256"]:
        raise FormatError(f"{path} is not the tokenizer that the manifest describes: its checksum differs; {remedy}")
    return tokenizer


def check_same(first: Tokenizer | None, other: Tokenizer | None, one: str, two: str) -> None:
    """Raise an error if two texts or models, of these names, have different tokenizers."""
    if first != other:
        names = [WHITE_SPACE if found is None else repr(found) for found in (first, other)]
        raise SettingsError(f"{two} has the tokenizer {names[1]}, {one} {names[0]}; expected the same for both")


def divided_lines(lines: Iterable[str], tokenizer: Tokenizer | None) -> list[str]:
    """Lines of text, each divided into pieces with spaces between them."""
    listed = list(lines)
    if tokenizer is None or not listed:
        return listed
    try:
        block = "".join(line.replace("\n", " ") + "\n" for line in listed).encode()
    except UnicodeEncodeError as error:
        wrong = error.object[error.start]
        raise InputError(f"a sentence has {wrong!r}, which is no character; expected text") from None
    return tokenizer.divide(block).decode().split("\n")[:-1]
