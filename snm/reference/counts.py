"""Codes of counts in plain Python.

Stored counts: a bucket as a text of zeros and ones, from docs/format.md. Counts of annotated events: as bytes.
"""

from __future__ import annotations

from snm.layouts.keys import MULTIPLIER

Rows = list[tuple[int, list[tuple[int, int]]]]
"""(key, [(target, link count), …]) of each row, in the order of keys and targets."""


def fixed(number: int, bits: int) -> str:
    """The lowest bit first."""
    return "".join(str(number >> i & 1) for i in range(bits))


def rice(number: int, bits: int) -> str:
    return "0" * (number >> bits) + "1" + fixed(number, bits)


def gamma(number: int) -> str:
    length = number.bit_length() - 1
    return "0" * length + "1" + fixed(number, length)


def golomb(number: int, bits: int) -> str:
    return gamma((number >> bits) + 1) + fixed(number, bits)


def encode(rows: Rows, least_key: int, key_bits: int, target_bits: int, gap_bits: int) -> list[int]:
    """The 64-bit words of a bucket. `least_key`: the smallest key that the bucket may have."""
    bits, before = "", (least_key >> 2) - 1
    for key, links in rows:
        bits += rice((key >> 2) - before - 1, key_bits)
        before = key >> 2
        target, count = links[0]
        if len(links) == 1:
            bits += "1" if count == 1 else "0" + gamma(1) + gamma(count - 1)
            bits += golomb(target, target_bits)
            continue
        bits += "0" + gamma(len(links)) + golomb(target, target_bits) + gamma(count)
        for next_target, count in links[1:]:
            bits += golomb(next_target - target - 1, gap_bits) + gamma(count)
            target = next_target
    return [int(bits[i : i + 64][::-1], 2) for i in range(0, len(bits), 64)]


def merge(*parts: Rows) -> Rows:
    """The sum of several parts."""
    summed: dict[int, dict[int, int]] = {}
    for part in parts:
        for key, links in part:
            row = summed.setdefault(key, {})
            for target, count in links:
                row[target] = row.get(target, 0) + count
    return [(key, sorted(row.items())) for key, row in sorted(summed.items())]


class Bits:
    """Reads what `encode` has written."""

    def __init__(self, words: list[int]) -> None:
        self.bits, self.at = "".join(fixed(word, 64) for word in words), 0

    def fixed(self, bits: int) -> int:
        self.at += bits
        return int(self.bits[self.at - bits : self.at][::-1] or "0", 2)

    def zeros(self) -> int:
        """The number of zeros before the next one, which is read too."""
        begin, self.at = self.at, self.bits.index("1", self.at) + 1
        return self.at - 1 - begin

    def rice(self, bits: int) -> int:
        return self.zeros() << bits | self.fixed(bits)

    def gamma(self) -> int:
        length = self.zeros()
        return 1 << length | self.fixed(length)

    def golomb(self, bits: int) -> int:
        return self.gamma() - 1 << bits | self.fixed(bits)


def decode(words: list[int], n_rows: int, least_key: int, key_bits: int, target_bits: int, gap_bits: int) -> Rows:
    rows: Rows = []
    source, before = Bits(words), (least_key >> 2) - 1
    for _ in range(n_rows):
        before += source.rice(key_bits) + 1
        n = count = 1
        if not source.fixed(1):
            n = source.gamma()
            count = source.gamma() + 1 if n == 1 else 0
        links = [(source.golomb(target_bits), count or source.gamma())]
        for _ in range(n - 1):
            target = links[-1][0] + source.golomb(gap_bits) + 1
            links.append((target, source.gamma()))
        rows.append((before << 2 | 1, links))
    return rows


def checksum(words: list[int]) -> int:
    """The chain of the words, the last one first."""
    found = 0
    for word in reversed(words):
        found = (found ^ word) * MULTIPLIER % (1 << 64)
        found ^= found >> 32
    return found


def encode_values(values: list[int]) -> bytes:
    """The packed counts of annotated events; see `snm.kernels.event_codes`."""
    coded, table = b"", dict[int, int]()
    for packed in values:
        feature_count, link_count = packed >> 16, packed & 0xFFFF
        number = sum(range(feature_count)) + link_count
        slot = (feature_count ^ feature_count >> 5 ^ feature_count >> 10) % 32
        if feature_count > 963 and table.get(slot) == feature_count:
            coded += bytes([216 + slot, link_count] if link_count < 255 else [216 + slot, 255, *divide(link_count)])
        elif feature_count > 963:
            table[slot] = feature_count
            coded += bytes([255, *divide(feature_count), *divide(link_count)])
        elif number < 192:
            coded += bytes([number])
        elif number < 192 + 24 * 256:
            coded += (number - 192 + 192 * 256).to_bytes(2, "big")
        else:
            coded += (number - 192 - 24 * 256 + 248 * 65536).to_bytes(3, "big")
    return coded


def divide(number: int) -> tuple[int, int]:
    """Its two bytes, the lower one first."""
    return number % 256, number // 256
