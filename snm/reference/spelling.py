"""Spelling words in plain Python: interpolated Kneser-Ney of bytes, the reference of the tests."""

from __future__ import annotations

from collections import Counter

BOUNDARY = 10
NO_BYTES_OF_WORDS = {0, *range(9, 14), 32, 0xC0, 0xC1, *range(0xF5, 0x100)}  # NUL, white space, none of UTF-8's
SYMBOLS = sorted(set(range(256)) - NO_BYTES_OF_WORDS | {BOUNDARY})
Gram = tuple[int, ...]


def count_grams(words: list[bytes], order: int) -> list[Counter[Gram]]:
    """Counts of the n-grams of bytes that end in a byte or in the boundary after a word, for each length."""
    counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for word in words:
        symbols = (BOUNDARY, *word, BOUNDARY)
        for k in range(1, len(symbols)):
            for n in range(1, min(order, k + 1) + 1):
                counts[n - 1][symbols[k - n + 1 : k + 1]] += 1
    return counts


class ByteModel:
    """P(byte | the bytes of the word before it), and P(word)."""

    def __init__(self, words: list[bytes], order: int) -> None:
        counts = count_grams(words, order)
        self.adjusted = [Counter[Gram]() for _ in counts]
        self.adjusted[-1] = counts[-1]
        for n in range(1, order):
            for gram in counts[n]:
                self.adjusted[n - 1][gram[1:]] += 1
            for gram in counts[n - 1]:
                if len(gram) > 1 and gram[0] == BOUNDARY:
                    self.adjusted[n - 1][gram] = counts[n - 1][gram]
        self.discounts = [discounts_of(adjusted) for adjusted in self.adjusted]

    def symbol(self, symbol: int, context: Gram) -> float:
        """P(symbol | context). The context begins with the boundary."""
        return self._symbol(symbol, context[-(len(self.adjusted) - 1) :])

    def _symbol(self, symbol: int, context: Gram) -> float:
        n = len(context)
        shorter = self._symbol(symbol, context[1:]) if n else 1 / len(SYMBOLS)
        row = {gram[-1]: count for gram, count in self.adjusted[n].items() if gram[:-1] == context}
        if not row:
            return shorter
        total = sum(row.values())
        freed = sum(self.discounts[n][min(count, 3)] for count in row.values()) / total
        count = row.get(symbol, 0)
        return (count - self.discounts[n][min(count, 3)]) / total + freed * shorter

    def word(self, word: bytes) -> float:
        """P(word) among all strings of one byte or more."""
        symbols, p = (BOUNDARY, *word, BOUNDARY), 1.0
        for k in range(1, len(symbols)):
            p *= self.symbol(symbols[k], symbols[:k])
        return p / (1 - self.symbol(BOUNDARY, (BOUNDARY,)))


def discounts_of(counts: Counter[Gram]) -> tuple[float, float, float, float]:
    """Chen and Goodman's discounts of counts 0, 1, 2, and 3 or more; fixed ones where these are undefined."""
    n1, n2, n3, n4 = (sum(count == k for count in counts.values()) for k in (1, 2, 3, 4))
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        made = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        if all(0 < d <= k for k, d in enumerate(made, 1)):  # with 0 some strings would have no probability
            return 0.0, *made
    return 0.0, 0.5, 1.0, 1.5
