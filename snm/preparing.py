"""The first stages of training: the text is read and encoded, its rare words are learned, a part of it is held out.

    read_text (or read_counted) -> learn_spelling -> hold_out

`snm.pipeline` goes on from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from snm.counted import READER_BYTES, CountedText
from snm.engines.cpu import PROGRAM_BYTES
from snm.errors import InputError, SettingsError
from snm.gate.fitting import MIN_EVENTS
from snm.layouts.tokens import UNKNOWN
from snm.manifest import write_spelling
from snm.progress import Notify, Progress
from snm.pruning.budget import Budget
from snm.resuming import Kept, Stage
from snm.settings import HYBRID, NEURAL, Settings, given_vocabulary
from snm.storage import ModelWriter
from snm.text.classes import LITTLE_TEXT
from snm.text.encoding import Text, count_words, encode_files, read_corpus
from snm.text.files import Sources, names, plain_size
from snm.text.sampling import sample_sentences, split_sentences
from snm.text.spelling import RareWords, spans_of, thinned, words_to_learn
from snm.text.vocabulary import Vocabulary

HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 300_000  # tokens held out of the training text, where the user gives none
DEFAULT_FOLDS = 4  # of a little text, where the user gives no held-out text
RECOUNTED_SHARE = 0.01  # a larger held-out slice is counted in the end
VOCABULARY_SHARE = 0.45  # of the memory beside the program's, for arrays with an entry for every word
WORD_BYTES, SINGLE_BYTES = 64, 4  # of a word in these arrays: in all of them, and for each type of features


@dataclass(frozen=True)
class Job:
    """What every stage needs beside its input."""

    settings: Settings
    writer: ModelWriter
    progress: Progress
    notify: Notify
    counts: CountedText | None = None  # where the text and its counts come from, if it was counted before
    kept: Kept = field(default_factory=Kept)  # stages that a run before has finished
    rare: RareWords = field(default_factory=RareWords)  # words of the text that are not in the vocabulary
    spelling: dict[str, Any] = field(default_factory=dict)  # the manifest's entry of the spelling model
    classes: np.ndarray | None = None  # of words, if they were learned before


@dataclass(frozen=True)
class Texts:
    """The training text and the held-out texts. `whole` is the training text before a slice of it was held out."""

    train: Text
    whole: Text
    fitted: Text | None = None  # the multinomial loss is learned on it
    dev: Text | None = None  # training stops by its perplexity
    gate: Text | None = None  # the gate is learned on it
    folds: int = 0  # of the training text, that the gate is learned on instead; see `snm.folding`

    @property
    def counted_again(self) -> bool:
        """Whether the held-out slice is too large a part of the text to leave out."""
        return self.train.events < (1 - RECOUNTED_SHARE) * self.whole.events


def read_text(job: Job, sources: Sources) -> tuple[Text, Vocabulary]:
    """The training text, encoded, and its vocabulary or the one that was given."""
    s = job.settings
    if found := job.kept.load("text"):
        return _kept_text(job, found)
    memory = None if s.model in NEURAL else s.memory - PROGRAM_BYTES
    with job.progress("reading", plain_size(sources)) as bar:
        vocabulary = given_vocabulary(s, memory, job.notify)
        if vocabulary is None:
            threads = min(s.threads, s.memory // READER_BYTES)
            text, vocabulary = read_corpus(
                sources, s.min_count, s.max_words, s.closed, bar, s.document, threads, job.writer.spool, s.on_error,
                memory, job.notify, job.rare, s.fields, s.text_tokenizer,
            )  # fmt: skip
        else:
            check_vocabulary(s, len(vocabulary))
            text = encode_files(sources, vocabulary, bar, job.writer.spool, s.on_error, job.notify, rare=job.rare)
    if not text.events:
        raise InputError(f"{names(sources)}: no words; expected one sentence a line")
    check_vocabulary(s, len(vocabulary))
    figures = {"sentences": text.sentences, "documents": text.documents, "bad_lines": text.bad_lines}
    words = {"words": np.frombuffer(vocabulary.lines, np.uint8), "rare": np.frombuffer(job.rare.lines, np.uint8)}
    job.kept.save("text", figures, tokens=text.tokens, **words)
    found = job.kept.load("text")  # the tokens that were read are on disk too: one of both is enough
    return _kept_text(job, found) if found else (text, vocabulary)


def _kept_text(job: Job, found: Stage) -> tuple[Text, Vocabulary]:
    """The text that this run or one before has read."""
    figures, arrays = found
    words = arrays["words"].tobytes().split(b"\n", 3)[-1]  # without <S>, </S> and <UNK>
    job.rare.add(*spans_of(arrays["rare"].tobytes()))
    s = job.settings
    vocabulary = Vocabulary.of_lines(words, s.closed, s.document, s.text_tokenizer)
    first_field = vocabulary.first_field if vocabulary.fields else None
    return Text(arrays["tokens"], **figures, first_field=first_field), vocabulary


def read_counted(job: Job) -> tuple[Text, Vocabulary]:
    """The text of a folder of counts, and its vocabulary."""
    assert job.counts is not None
    job.counts.check(job.settings.threads)
    check_vocabulary(job.settings, len(job.counts.vocabulary))
    return job.counts.text, job.counts.vocabulary


def check_vocabulary(settings: Settings, words: int) -> None:
    """Raise an error if the arrays that an SNM has for every word, such as `singles`, take too much memory."""
    needed = words * (WORD_BYTES + SINGLE_BYTES * len(settings.spec.types))
    share = int(VOCABULARY_SHARE * (settings.memory - PROGRAM_BYTES))
    if settings.model in ("snm", HYBRID) and needed > share:
        raise SettingsError(
            f"{words:,} words take about {needed >> 20:,} MB, more than their share of --memory, {share >> 20:,} MB; "
            f"give more --memory, or have fewer words (--min-count, --max-words, --vocab)"
        )


def learn_spelling(job: Job, text: Text, vocabulary: Vocabulary) -> None:
    """Write the spelling model, learned from the text's rare words, to the model's folder."""
    words = words_to_learn(job.rare.lines, count_words(text, len(vocabulary)), vocabulary)
    if job.settings.size is not None:
        words = thinned(words, int(Budget(size=job.settings.size).spelling_bytes))
    job.spelling.update(write_spelling(job.writer.folder, words, vocabulary))


def text_figures(job: Job, text: Text, vocabulary: Vocabulary) -> dict[str, Any]:
    """The text's entry of the manifest."""
    unknown = sum(int(np.count_nonzero(piece == vocabulary.unknown)) for piece in text.pieces())
    documents = "" if text.documents is None else f"{text.documents:,} documents, "
    job.notify(
        f"{documents}{text.sentences:,} sentences, {text.events:,} tokens, {len(vocabulary):,} words, "
        f"{unknown / text.events:.2%} out of vocabulary"
    )
    return {"sentences": text.sentences, "tokens": text.events, "oov": unknown, "bad_lines": text.bad_lines}


def hold_out(job: Job, text: Text, vocabulary: Vocabulary, dev: Sources | None) -> Texts:
    """The held-out texts that the settings need: given by the user, or the end of the training text."""
    s = job.settings
    multinomial = s.training.loss == "multinomial"
    if dev is None and not s.gate and not multinomial:
        return Texts(text, text)
    folds = folds_for(s, text.events, dev is not None)
    if s.folds and folds > text.segments:
        what = "sentences" if text.documents is None else "documents"
        raise InputError(f"{folds} folds of a text of {text.segments:,} {what}; ask for fewer (--folds)")
    if 0 < folds <= text.segments:
        job.notify(f"the gate is learned from {folds} parts of the text, each under a model of the others")
        return Texts(text, text, folds=folds)
    given = None if dev is None else (text, given_text(job, dev, vocabulary))
    train, held_out = given or slice_off(job, text, vocabulary, multinomial)
    if held_out is None:
        return Texts(text, text)
    if not multinomial:
        return Texts(train, text, dev=held_out if s.training.passes > 1 else None, gate=held_out)
    if held_out.segments < 5:
        return Texts(train, text, fitted=held_out)
    fitted, rest = split_sentences(held_out, held_out.events // 5)
    return Texts(train, text, fitted, rest, rest)


def without_new_words(job: Job, held_out: Text, rest: Text, vocabulary: Vocabulary) -> Text:
    """A part of the text with `<UNK>` for words that are rare in the rest.

    They are in the vocabulary only because the part belongs to the text.
    """
    if job.settings.vocab is not None or job.settings.alphabet is not None or job.counts is not None:
        return held_out
    rare = count_words(rest, len(vocabulary)) < job.settings.min_count
    rare[: UNKNOWN + 1] = False
    rare[vocabulary.first_field :] = False
    return replace(held_out, tokens=np.where(rare[held_out.tokens], np.uint32(UNKNOWN), held_out.tokens))


def folds_for(settings: Settings, tokens: int, dev_given: bool) -> int:
    """How many folds of a text the gate is learned from; 0 if it is learned from other held-out text."""
    if settings.folds is not None:
        return settings.folds
    little = MIN_EVENTS / HELD_OUT_SHARE <= tokens <= LITTLE_TEXT
    return DEFAULT_FOLDS if little and settings.can_fold and not dev_given else 0


def given_text(job: Job, dev: Sources, vocabulary: Vocabulary) -> Text:
    text = encode_files(dev, vocabulary, on_error=job.settings.on_error, notify=job.notify)
    if not text.events:
        raise InputError(f"{names(dev)}: no words; expected held-out text, one sentence a line")
    if text.events > MAX_HELD_OUT:
        text = sample_sentences(text, MAX_HELD_OUT, job.settings.seed)
        job.notify(f"of the held-out text, {text.events:,} tokens drawn at random are used")
    return text


def slice_off(job: Job, text: Text, vocabulary: Vocabulary, required: bool) -> tuple[Text, Text | None]:
    """(the rest, the end) of the training text; no end where the text is too short for one."""
    wanted = min(int(text.events * HELD_OUT_SHARE) + 1, MAX_HELD_OUT)
    if text.segments < 2:
        what = "sentence" if text.documents is None else "document"
        message = f"one {what} is too little text to hold some of it out; give held-out text with --dev"
        if required:
            raise InputError(message)
        job.notify(message)
        return text, None
    if not required and wanted < MIN_EVENTS:
        job.notify(f"{text.events:,} tokens are too few to hold some out for a gate; give --dev to have one")
        return text, None
    rest, end = split_sentences(text, wanted)
    end = without_new_words(job, end, rest, vocabulary)
    job.notify(f"no held-out text given: the last {end.events:,} tokens of the training text are held out")
    return rest, end
