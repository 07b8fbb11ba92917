"""The backoff models in plain Python: the reference of their tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from snm.layouts.tokens import BEGIN, END, UNKNOWN

Sentence = Sequence[int]  # token ids, <S> first and </S> last
Ngram = tuple[int, ...]
Probability = Callable[[int, Sentence], float]  # of a word after a context that begins with <S>


def count_ngrams(sentences: Sequence[Sentence], order: int) -> list[Counter[Ngram]]:
    """Counts of the n-grams that end in a target, for each length from 1 to `order`."""
    counts: list[Counter[Ngram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        for k in range(1, len(sentence)):
            for n in range(1, min(order, k + 1) + 1):
                counts[n - 1][tuple(sentence[k - n + 1 : k + 1])] += 1
    return counts


def by_context(counts: Counter[Ngram]) -> dict[Ngram, dict[int, int]]:
    """{context: {word: count}}"""
    rows: dict[Ngram, dict[int, int]] = defaultdict(dict)
    for ngram, n in counts.items():
        rows[ngram[:-1]][ngram[-1]] = n
    return rows


def kneser_ney(
    sentences: Sequence[Sentence], order: int, words: int, modified: bool = True
) -> tuple[Probability, list[tuple[float, float, float]]]:
    """Interpolated Kneser-Ney over a vocabulary of `words`, `<S>` included; and its discounts."""
    counts = count_ngrams(sentences, order)
    adjusted = [Counter[Ngram]() for _ in counts]
    adjusted[-1] = counts[-1]
    for n in range(order - 1):
        for ngram in counts[n + 1]:
            adjusted[n][ngram[1:]] += 1
        for ngram in counts[n]:
            if ngram[0] == BEGIN:
                adjusted[n][ngram] = counts[n][ngram]
    discounts = [_discounts(values, modified) for values in _statistics(sentences, counts, adjusted)]
    rows = [by_context(a) for a in adjusted]

    def probability(word: int, context: Sentence, n: int = order) -> float:
        if n == 0:
            return 1 / (words - 1)
        history = tuple(context[len(context) - n + 1 :])
        shorter = probability(word, context, n - 1)
        if len(context) < n - 1 or history not in rows[n - 1]:
            return shorter
        row = rows[n - 1][history]
        total = sum(row.values())
        d = (0.0, *discounts[n - 1])
        freed = sum(d[min(c, 3)] for c in row.values()) / total
        c = row.get(word, 0)
        return max(c - d[min(c, 3)], 0) / total + freed * shorter

    return probability, discounts


def _statistics(
    sentences: Sequence[Sentence], counts: list[Counter[Ngram]], adjusted: list[Counter[Ngram]]
) -> list[list[int]]:
    """The adjusted counts of each order, but plain counts of the suffixes of the last n-gram, as in `lmplz`.

    N-grams are sorted by the rank of their last word, then of the word before it, and so on. Words are ranked in the
    order of the text.
    """
    rank = {UNKNOWN: -3, BEGIN: -2, END: -1}
    for sentence in sentences:
        for word in sentence:
            rank.setdefault(word, len(rank))
    order = len(counts)
    padded = [(BEGIN,) * (order - 1) + tuple(sentence) for sentence in sentences]
    every = [words[k - order + 1 : k + 1] for words in padded for k in range(order, len(words))]
    last = max(every, key=lambda ngram: [rank[word] for word in reversed(ngram)])
    suffixes = {last[order - n :] for n in range(1, order) if BEGIN not in last[order - n + 1 :]}
    return [
        [counts[n][ngram] if ngram in suffixes else value for ngram, value in adjusted[n].items()] for n in range(order)
    ]


def stupid_backoff(sentences: Sequence[Sentence], order: int, words: int, factor: float = 0.4) -> Probability:
    """Stupid backoff, normalised over the vocabulary; a word that was not seen counts once."""
    rows = [by_context(counts) for counts in with_all_words(count_ngrams(sentences, order), words)]

    def score(word: int, context: Sentence, n: int) -> float:
        history = tuple(context[len(context) - n + 1 :])
        row = rows[n - 1].get(history, {}) if len(context) >= n - 1 else {}
        if word in row:
            return row[word] / sum(row.values())
        return factor * score(word, context, n - 1)

    return lambda word, context: (
        score(word, context, order) / sum(score(other, context, order) for other in range(1, words))
    )


def with_all_words(counts: list[Counter[Ngram]], words: int) -> list[Counter[Ngram]]:
    """Add unigrams that were not seen: words with the count 1, `<UNK>` with the number of words seen once."""
    unigrams = counts[0]
    once = sum(n == 1 for (word,), n in unigrams.items() if word > UNKNOWN)
    for word in range(1, words):
        if not unigrams[(word,)]:
            unigrams[(word,)] = max(1, once) if word == UNKNOWN else 1
    return counts


def katz(sentences: Sequence[Sentence], order: int, words: int, max_discounted: int = 5) -> Probability:
    """Katz backoff with Good-Turing discounts; `snm.baselines.backoff.katz` states the special cases."""
    counts = with_all_words(count_ngrams(sentences, order), words)
    rows = [by_context(c) for c in counts]
    ratios = [{}, *(_katz_ratios(c, max_discounted) for c in counts[1:])]

    def discounted(n: int, history: Ngram) -> dict[int, float]:
        """Discounted probabilities of the words seen after a context."""
        row = rows[n - 1][history]
        kept = {w: c * ratios[n - 1].get(c, 1.0) for w, c in row.items()}
        total = sum(row.values())
        if n > 1 and sum(kept.values()) >= total - 1e-9:
            total += 1
        found = {w: c / total for w, c in kept.items()}
        if n > 1 and len(found) == words - 1:  # every word was seen
            found = {w: p / sum(found.values()) for w, p in found.items()}
        return found

    def probability(word: int, context: Sentence, n: int = order) -> float:
        history = tuple(context[len(context) - n + 1 :])
        if len(context) < n - 1 or history not in rows[n - 1]:
            return probability(word, context, n - 1)
        found = discounted(n, history)
        if word in found:
            return found[word]
        unseen = 1 - sum(probability(other, context, n - 1) for other in found)
        return (1 - sum(found.values())) / unseen * probability(word, context, n - 1)

    return probability


def _katz_ratios(counts: Counter[Ngram], max_discounted: int) -> dict[int, float]:
    n = Counter(counts.values())
    discounted = range(1, max_discounted + 1)
    fallback = {r: (r - 0.5) / r for r in discounted}
    if not all(n[r] for r in discounted):
        return fallback
    common = (max_discounted + 1) * n[max_discounted + 1] / n[1]
    if common >= 1:
        return fallback
    found = {r: ((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common) for r in discounted}
    return found if all(0 < d <= 1 for d in found.values()) else fallback


def _discounts(counts: list[int], modified: bool) -> tuple[float, float, float]:
    """Chen and Goodman's three discounts, or the single one three times; the fallback where they are undefined."""
    n1, n2, n3, n4 = (counts.count(k) for k in (1, 2, 3, 4))
    if not modified:
        return (n1 / (n1 + 2 * n2) if n1 and n2 else 0.5,) * 3
    if not (n1 and n2 and n3):
        return 0.5, 1.0, 1.5
    y = n1 / (n1 + 2 * n2)
    made = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return made if all(0 <= d <= k for k, d in enumerate(made, 1)) else (0.5, 1.0, 1.5)
