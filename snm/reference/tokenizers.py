"""Tokenizers of characters and bytes, slowly: see `snm.text.tokenizers`."""

from __future__ import annotations

SYMBOLS = {" ": "▁", "\t": "␉", "\v": "␋", "\f": "␌", "\r": "␍"}
ESCAPE = "␛"


def characters(line: str) -> list[str]:
    """The pieces of a line without its line feed: characters, white space as symbols, and symbols escaped."""
    if not line.strip(" \t\v\f\r"):
        return []
    own = {symbol: ESCAPE + symbol for symbol in (*SYMBOLS.values(), ESCAPE)}
    return [SYMBOLS.get(c, own.get(c, c)) for c in line.removesuffix("\r")]


def visible(byte: int) -> str:
    """The character that stands for a byte: itself where Latin-1 prints it, else one of those from U+0100 on."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in printable]
    return chr(byte if byte in printable else 256 + others.index(byte))


def byte_pieces(line: str) -> list[str]:
    """The same with bytes."""
    return [visible(byte) for byte in line.removesuffix("\r").encode()] if line.strip(" \t\v\f\r") else []
