"""CTC prefix beam search over one utterance, as pyctcdecode has it, for models of words or of tokens.

`advance` goes through frames until words need scores of the language model; then it returns, the model scores all of
them in one call, and `settle` stores the scores. Beams with the same finished words, the same unfinished word and the
same last label are one beam. Words, pieces of words and frames of words are trees: a node has its parent. `compact`
forgets nodes that no beam uses.
"""

import math

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import extend, mix64
from snm.kernels.tries import child_of, follow
from snm.layouts.decoding import (
    ALL_WORDS,
    BEAMS,
    BEGINS,
    BLANK,
    CANDIDATES,
    CUT,
    DEAD,
    DONE,
    EXPAND,
    FIRST_LABEL,
    FRAME,
    GROW,
    NONE,
    PENDING,
    PHASE,
    PIECES,
    PRUNE,
    ROOT,
    SCORE,
    SPACE,
    SPANS,
    TYPICAL_LETTERS,
    WORDS,
)
from snm.layouts.tokens import UNKNOWN

_ONE = np.uint64(1)
_SPACE = np.uint32(32)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LN10 = math.log(10.0)


# ---------------------------------------------------------------------------------------------
# words


@helper
def place_of_word(parent, hash, search):
    """Where the word with this hash after `parent` is in `children`, or where it would be."""
    mask = np.uint64(len(search.children) - 1)
    at = mix64(hash + np.uint64(parent) * _SPREAD) & mask
    while search.children[at] != NONE:
        word = search.words[search.children[at]]
        if word.parent == parent and word.hash == hash:
            break
        at = (at + _ONE) & mask
    return at


@helper
def recent_words(parent, hash, order, words):
    """Hash of the last words that a model of this order can see; at least one."""
    recent, node = extend(np.uint64(0), hash), np.int64(parent)
    for _ in range(order - 2):
        if node == NONE or words[node].depth == 0:
            break
        recent = extend(recent, words[node].hash)
        node = np.int64(words[node].parent)
    return recent


@helper
def finished_word(candidate, beam, search, limits):
    """The node of the word that a candidate finishes; a new one is pending, if there is a model."""
    at = place_of_word(beam.word, candidate.hash, search)
    if search.children[at] != NONE:
        return search.children[at]
    node = search.counters[WORDS]
    search.counters[WORDS] += 1
    search.children[at] = node
    word, before = search.words[node], search.words[beam.word]
    word.parent, word.hash, word.text = beam.word, candidate.hash, candidate.text
    word.piece = FIRST_LABEL - candidate.label if beam.piece == NONE else beam.piece
    word.id, word.known = max(candidate.id, np.int64(UNKNOWN)), candidate.id != NONE
    word.depth = before.depth + 1
    word.recent = candidate.text
    if limits.order < ALL_WORDS:
        word.recent = recent_words(beam.word, candidate.hash, limits.order, search.words)
    word.hot, word.score = before.hot + candidate.bonus, before.score
    if limits.has_model:
        search.pending[search.counters[PENDING]] = node
        search.counters[PENDING] += 1
    return node


@kernel
def settle(scores, limits, search):
    """Add the scores of the pending words, log10 P, to those of their histories."""
    for i in range(search.counters[PENDING]):
        word = search.words[search.pending[i]]
        score = scores[i]
        if not word.known:
            score += limits.unknown
        word.score = search.words[word.parent].score + limits.alpha * score * _LN10 + limits.beta
    search.counters[PENDING] = 0


# ---------------------------------------------------------------------------------------------
# candidates


@helper
def add_characters(candidate, one, labels, lexicon, hot):
    """Add the characters of a label to the unfinished word."""
    for i in range(one.start, one.stop):
        c = labels.characters[i]
        candidate.part = extend(candidate.part, mix64(np.uint64(c) + _ONE))
        if candidate.lexicon != NONE:
            candidate.lexicon = child_of(candidate.lexicon, c, lexicon)
        candidate.hot = follow(candidate.hot, c, hot)
    candidate.letters += one.stop - one.start
    candidate.grows = one.stop > one.start
    candidate.closed = one.closes


@helper
def finish_part(candidate, lexicon, hot):
    """End the unfinished word, if there is one."""
    candidate.finishes = candidate.letters > 0
    if candidate.finishes:
        candidate.hash = mix64(candidate.part)
        candidate.text = extend(candidate.text, candidate.hash)
        candidate.id = NONE if candidate.lexicon == NONE else np.int64(lexicon.values[candidate.lexicon])
        candidate.bonus = hot.bonus[candidate.hot]
        candidate.hot = follow(candidate.hot, _SPACE, hot)
    candidate.part, candidate.letters, candidate.lexicon, candidate.closed = np.uint64(0), 0, ROOT, 0
    candidate.begin = candidate.end = NONE


@helper
def add_token(candidate, label, one, labels, hot):
    """Add a label of a token-level model, which is a word of its own. A hot word ends where a space follows."""
    candidate.hash = mix64(np.uint64(label) + _ONE)
    candidate.text = extend(candidate.text, candidate.hash)
    candidate.id, candidate.finishes, candidate.bonus = one.id, 1, 0.0
    for i in range(one.start, one.stop):
        c = labels.characters[i]
        if c == _SPACE:
            candidate.bonus += hot.bonus[candidate.hot]
        candidate.hot = follow(candidate.hot, c, hot)


@helper
def add_label(candidate, label, frame, labels, lexicon, hot):
    """What a beam becomes with one more label."""
    one, last = labels.labels[label], candidate.label
    candidate.label, candidate.finishes, candidate.grows = label, 0, 0
    if one.kind == BLANK:
        return
    if last == label:
        candidate.end = frame + 1
        return
    if one.kind == SPACE:
        finish_part(candidate, lexicon, hot)
        return
    if labels.by_token[0]:
        add_token(candidate, label, one, labels, hot)
        candidate.begin, candidate.end = frame, frame + 1
        return
    if one.kind == BEGINS or candidate.closed:
        finish_part(candidate, lexicon, hot)
        candidate.begin = frame
    add_characters(candidate, one, labels, lexicon, hot)
    if candidate.begin < 0:
        candidate.begin = frame
    candidate.end = frame + 1


@helper
def key_of(candidate):
    """Of candidates that are the same beam: the words, the unfinished word and the last label."""
    return mix64(extend(extend(candidate.text, candidate.part), np.uint64(candidate.label + 1)))


@helper
def log_sum(a, b):
    return max(a, b) + math.log1p(math.exp(min(a, b) - max(a, b)))


@helper
def merge(n, mask, search):
    """Merge candidate n with an equal one before it; whether there was one. Its frames stay, as in pyctcdecode."""
    candidates, key = search.candidates, search.candidates[n].key
    at = key & mask
    while search.table[at] != NONE:
        other = search.table[at]
        if candidates[other].key == key:
            total = log_sum(candidates[other].acoustic, candidates[n].acoustic)
            candidates[other] = candidates[n]
            candidates[other].acoustic = total
            return True
        at = (at + _ONE) & mask
    search.table[at] = n
    return False


@helper
def clear_table(entries, search):
    """Empty the hash table for this many entries; return its mask."""
    size = np.int64(16)
    while size < 2 * entries:
        size *= 2
    search.table[:size] = NONE
    return np.uint64(size - 1)


@helper
def is_possible(candidate, limits):
    """Whether words of the vocabulary agree with a candidate."""
    return limits.open or (candidate.lexicon != NONE and not (candidate.finishes and candidate.id == NONE))


@helper
def find_tokens(row, limits, tokens):
    """Fill `tokens` with the labels of a frame that are probable enough; return their number."""
    n, best = np.int64(0), np.int64(0)
    for label in range(1, len(row)):
        if row[label] > row[best]:
            best = label
    for label in range(len(row)):
        if row[label] >= limits.min_token or label == best:
            tokens[n] = label
            n += 1
    return n


@helper
def expand(row, n_tokens, limits, search, labels, lexicon, hot):
    """Make the candidates of a frame, merged."""
    counters, n = search.counters, np.int64(0)
    mask = clear_table(counters[BEAMS] * n_tokens, search)
    for k in range(n_tokens):
        label = search.tokens[k]
        for b in range(counters[BEAMS]):
            search.candidates[n] = search.beams[b]
            candidate = search.candidates[n]
            candidate.before = b
            candidate.acoustic += row[label]
            add_label(candidate, label, counters[FRAME], labels, lexicon, hot)
            if is_possible(candidate, limits):
                candidate.key = key_of(candidate)
                n += not merge(n, mask, search)
    counters[CANDIDATES] = n


@helper
def stay(row, search, labels):
    """Keep all beams, as if the frame were blank: no candidate agrees with the vocabulary."""
    blank = np.int64(0)
    while labels.labels[blank].kind != BLANK:
        blank += 1
    for b in range(search.counters[BEAMS]):
        search.candidates[b] = search.beams[b]
        candidate = search.candidates[b]
        candidate.before, candidate.label, candidate.finishes, candidate.grows = b, blank, 0, 0
        candidate.acoustic += row[blank]
    search.counters[CANDIDATES] = search.counters[BEAMS]


# ---------------------------------------------------------------------------------------------
# scores


@helper
def partial_score(candidate, limits, hot):
    """What an unfinished word adds: the bonus of a hot word that it begins, or the cost of an unknown word."""
    if candidate.hot > DEAD:
        return hot.partial[candidate.hot]
    if candidate.lexicon == NONE and limits.has_model:
        return limits.unknown * max(1.0, candidate.letters / TYPICAL_LETTERS)
    return 0.0


@helper
def find_words(limits, search, hot):
    """Find the words that candidates finish, and add up the scores that are known; return the best of them.

    log P is at most 0, so a candidate with a new word has the total that it would have with log P = 0.
    """
    best = -math.inf
    for n in range(search.counters[CANDIDATES]):
        candidate = search.candidates[n]
        beam = search.beams[candidate.before]
        node = beam.word
        if candidate.finishes:
            node = search.children[place_of_word(beam.word, candidate.hash, search)]
        word = search.words[beam.word if node == NONE else node]
        candidate.word = node
        candidate.total = candidate.acoustic + word.score + word.hot + partial_score(candidate, limits, hot)
        if node != NONE:
            best = max(best, candidate.total)
        else:
            candidate.total += candidate.bonus
            if limits.has_model:
                candidate.total += limits.beta + max(0.0, limits.alpha * limits.unknown * _LN10)
    return best


@helper
def add_words(best, limits, search):
    """Make the new words of candidates that can still be kept, given the best total that is known."""
    for n in range(search.counters[CANDIDATES]):
        candidate = search.candidates[n]
        if candidate.word == NONE and not (limits.alpha >= 0 and candidate.total < best + limits.prune):
            candidate.word = finished_word(candidate, search.beams[candidate.before], search, limits)


@helper
def add_totals(limits, search, hot):
    """Add up the scores of all candidates; return the best."""
    best = -math.inf
    for n in range(search.counters[CANDIDATES]):
        candidate = search.candidates[n]
        if candidate.word != NONE:
            word = search.words[candidate.word]
            candidate.total = candidate.acoustic + word.score + word.hot + partial_score(candidate, limits, hot)
            best = max(best, candidate.total)
    return best


# ---------------------------------------------------------------------------------------------
# the best ones


@helper
def merge_sorted(source, target, start, middle, stop, candidates):
    """Merge two runs of candidates, best first; of equal ones the first comes first."""
    i, j = start, middle
    for k in range(start, stop):
        if j >= stop or (i < middle and candidates[source[i]].total >= candidates[source[j]].total):
            target[k] = source[i]
            i += 1
        else:
            target[k] = source[j]
            j += 1


@helper
def sort_best(least, search):
    """Order candidates of at least this total, the best first; return which row of `order` has them, and how many."""
    n, row = np.int64(0), np.int64(0)
    for i in range(search.counters[CANDIDATES]):
        if search.candidates[i].word != NONE and search.candidates[i].total >= least:
            search.order[0, n] = i
            n += 1
    length = np.int64(1)
    while length < n:
        for start in range(0, n, 2 * length):
            middle, stop = min(start + length, n), min(start + 2 * length, n)
            merge_sorted(search.order[row], search.order[1 - row], start, middle, stop, search.candidates)
        row, length = 1 - row, 2 * length
    return row, n


@helper
def is_repeated(candidate, mask, search):
    """Whether a better beam has the same future: the words that the model sees, the unfinished word, the label."""
    recent = search.words[candidate.word].recent
    key = mix64(extend(extend(recent, candidate.part), np.uint64(candidate.label + 1)) ^ _SPREAD)
    at = key & mask
    while search.table[at] != NONE:
        if np.uint64(search.table[at]) == key >> _ONE:
            return True
        at = (at + _ONE) & mask
    search.table[at] = np.int64(key >> _ONE)
    return False


@helper
def keep(candidate, beam, search):
    """Add the nodes of a candidate that becomes a beam."""
    counters = search.counters
    if candidate.finishes:
        span = search.spans[counters[SPANS]]
        span.parent, span.depth = beam.span, search.words[candidate.word].depth
        span.begin, span.end = beam.begin, beam.end
        candidate.span = counters[SPANS]
        counters[SPANS] += 1
        candidate.piece = NONE
    if candidate.grows:
        piece = search.pieces[counters[PIECES]]
        piece.parent, piece.label = candidate.piece, candidate.label
        candidate.piece = counters[PIECES]
        counters[PIECES] += 1


@helper
def prune(best, limits, search):
    """Make beams of the best candidates."""
    row, n = sort_best(best + limits.prune, search)
    n = min(n, limits.width)
    mask = clear_table(n, search)
    kept = np.int64(0)
    for i in range(n):
        candidate = search.candidates[search.order[row, i]]
        if limits.by_history and is_repeated(candidate, mask, search):
            continue
        keep(candidate, search.beams[candidate.before], search)
        search.kept[kept] = candidate
        kept += 1
    for i in range(kept):
        search.beams[i] = search.kept[i]
    search.counters[BEAMS] = kept


@helper
def has_room(n_tokens, by_token, search):
    """Whether the arrays have room for one more frame."""
    counters, beams = search.counters, search.counters[BEAMS]
    new_words = beams * n_tokens if by_token else beams
    return (
        beams * n_tokens <= len(search.candidates)
        and counters[WORDS] + new_words <= len(search.words)
        and counters[PIECES] + len(search.beams) <= len(search.pieces)
        and counters[SPANS] + len(search.beams) <= len(search.spans)
    )


@kernel
def advance(log_probabilities, done, limits, search, labels, lexicon, hot):
    """Go through frames from `done` on; return what is wanted next and how many frames are done.

    SCORE: `settle` the pending words, then call again. GROW: `compact`, or make larger arrays. (frames, labels)
    """
    counters = search.counters
    while done < len(log_probabilities):
        row = log_probabilities[done]
        if counters[PHASE] == EXPAND:
            n_tokens = find_tokens(row, limits, search.tokens)
            if not has_room(n_tokens, labels.by_token[0], search):
                return GROW, done
            expand(row, n_tokens, limits, search, labels, lexicon, hot)
            if counters[CANDIDATES] == 0:
                stay(row, search, labels)
            add_words(find_words(limits, search, hot), limits, search)
            counters[PHASE] = PRUNE
            if counters[PENDING]:
                return SCORE, done
        prune(add_totals(limits, search, hot), limits, search)
        counters[PHASE] = EXPAND
        counters[FRAME] += 1
        done += 1
    return DONE, done


@kernel
def finish(limits, search, lexicon, hot):
    """End the unfinished words of all beams; the results are in `candidates`, merged, with pending words.

    Their scores lack that of the end of the sentence. Where words of the vocabulary alone are possible, others are
    left out, or if there are no more, only their unfinished words are.
    """
    counters = search.counters
    mask = clear_table(counters[BEAMS], search)
    for strict in (True, False):
        n = np.int64(0)
        for b in range(counters[BEAMS]):
            search.candidates[n] = search.beams[b]
            candidate = search.candidates[n]
            candidate.before, candidate.grows = b, 0
            finish_part(candidate, lexicon, hot)
            if not is_possible(candidate, limits):
                if strict:
                    continue
                candidate.finishes, candidate.text = 0, search.beams[b].text
            candidate.label = 0
            candidate.key = key_of(candidate)
            n += not merge(n, mask, search)
        if n > 0:
            break
    counters[CANDIDATES] = n
    for i in range(n):
        candidate = search.candidates[i]
        beam = search.beams[candidate.before]
        candidate.word = finished_word(candidate, beam, search, limits) if candidate.finishes else beam.word
        if not candidate.finishes:
            candidate.bonus = hot.bonus[beam.hot]


@kernel
def stable_word(search):
    """The last word that all beams have."""
    common = search.beams[0].word
    for b in range(1, search.counters[BEAMS]):
        other = search.beams[b].word
        while common != other:
            if search.words[common].depth >= search.words[other].depth:
                common = np.int64(search.words[common].parent)
            else:
                other = np.int64(search.words[other].parent)
    return common


# ---------------------------------------------------------------------------------------------
# room


@helper
def mark(node, nodes, marks):
    """Mark a node and those before it."""
    while node >= 0 and not marks[node]:
        marks[node] = 1
        node = np.int64(nodes[node].parent)


@helper
def renumber(n, nodes, marks):
    """Move marked nodes to the front, in their order. marks: the new numbers, NONE of nodes that are gone."""
    kept = np.int64(0)
    for i in range(n):
        if marks[i]:
            nodes[kept] = nodes[i]
            parent = np.int64(nodes[kept].parent)
            nodes[kept].parent = NONE if parent == NONE else marks[parent]
            marks[i] = kept
            kept += 1
        else:
            marks[i] = NONE
    return kept


@helper
def move_states(n, states, marks):
    """Move the states of marked words to the front."""
    kept = np.int64(0)
    for i in range(n):
        if marks[i]:
            for j in range(states.shape[1]):
                states[kept, j] = states[i, j]
            kept += 1


@helper
def index_children(search):
    """Fill the hash table of words."""
    search.children[:] = NONE
    for i in range(search.counters[WORDS]):
        word = search.words[i]
        if word.parent != NONE:
            search.children[place_of_word(np.int64(word.parent), word.hash, search)] = i


@kernel
def compact(search, marks):
    """Forget nodes that no beam uses, and words and frames up to the depth `CUT`. Between frames. marks: (3, nodes)

    Word 0 may become a later word, at which all histories begin.
    """
    counters = search.counters
    words, pieces, spans = marks[0], marks[1], marks[2]
    marks[:] = 0
    for b in range(counters[BEAMS]):
        beam = search.beams[b]
        mark(beam.word, search.words, words)
        mark(beam.piece, search.pieces, pieces)
        mark(beam.span, search.spans, spans)
    for i in range(counters[WORDS]):
        if search.words[i].depth < counters[CUT]:
            words[i] = 0
    for i in range(counters[SPANS]):
        if search.spans[i].depth <= counters[CUT]:
            spans[i] = 0
    for i in range(counters[WORDS]):
        if words[i]:
            mark(np.int64(search.words[i].piece), search.pieces, pieces)
    counters[PIECES] = renumber(counters[PIECES], search.pieces, pieces)
    for i in range(counters[WORDS]):
        if words[i] and search.words[i].piece >= 0:
            search.words[i].piece = pieces[search.words[i].piece]
    move_states(counters[WORDS], search.states, words)
    counters[WORDS] = renumber(counters[WORDS], search.words, words)
    counters[SPANS] = renumber(counters[SPANS], search.spans, spans)
    for b in range(counters[BEAMS]):
        beam = search.beams[b]
        beam.word = words[beam.word]
        beam.piece = NONE if beam.piece == NONE else pieces[beam.piece]
        beam.span = NONE if beam.span == NONE else spans[beam.span]
    index_children(search)


@kernel
def reindex(search):
    """Fill the hash table of words, which has become larger."""
    index_children(search)
