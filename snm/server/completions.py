"""The completions API of OpenAI over models of words: a token is a word, or the end of a line for `</S>`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from snm.layouts.tokens import END
from snm.model import LanguageModel, draw_words
from snm.server.limits import Refusal
from snm.server.prompts import Prompt, bounded, log_probabilities, prompt_of_ids, prompt_of_text
from snm.server.requests import CompletionRequest

WORDS = 16  # sampled or ranked at a time
FINAL = "</S>"


@dataclass
class Logprobs:
    """What a choice says of its tokens."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, token: str, logprob: float, top: dict[str, float], offset: int) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append({token: logprob, **top})
        self.text_offset.append(offset)

    def shown(self, top: int | None) -> dict[str, Any] | None:
        if top is None:
            return None
        tops = self.top_logprobs if top else [None] * len(self.tokens)
        return {"tokens": self.tokens, "token_logprobs": self.token_logprobs, "top_logprobs": tops,
                "text_offset": self.text_offset}  # fmt: skip


@dataclass
class Event:
    """A part of a choice: some text, what is said of it, and how it ended if it did."""

    index: int
    text: str = ""
    logprobs: Logprobs = field(default_factory=Logprobs)
    finish: str | None = None
    prompt_tokens: int = 0
    tokens: int = 0  # generated


def prompts_of(model: LanguageModel, asked: CompletionRequest) -> list[Prompt]:
    given: Any = asked.prompt
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    return [
        prompt_of_text(one, model.vocabulary) if isinstance(one, str) else prompt_of_ids(one, model.vocabulary)
        for one in several
    ]


def events(model: LanguageModel, asked: CompletionRequest) -> Iterator[list[Event]]:
    """The parts of all choices; an empty group after every few words."""
    index = 0
    for prompt in prompts_of(model, asked):
        for _ in range(asked.n or 1):
            yield [Event(index, prompt_tokens=len(prompt.ids))]
            if asked.echo:
                yield from _echo(model, prompt, asked, index)
            yield from _Choice(model, prompt, asked, index).events()
            index += 1


def _echo(model: LanguageModel, prompt: Prompt, asked: CompletionRequest, index: int) -> Iterator[list[Event]]:
    said, at = Logprobs(), 0
    logs = log_probabilities(model, prompt) if asked.logprobs is not None else []
    for k, (place, log_p) in enumerate(zip(prompt.places.tolist(), logs, strict=False)):
        top = _best(model, _before(prompt.tokens, place), prompt.pieces[k], asked.logprobs) if asked.logprobs else {}
        said.add(prompt.pieces[k], log_p, top, at)
        at += len(prompt.pieces[k])
        if asked.logprobs and k % WORDS == WORDS - 1:
            yield []
    yield [Event(index, prompt.text, said)]


def _before(tokens: np.ndarray, place: int) -> np.ndarray:
    """The context of a place: from the last `<S>` on."""
    start = int(np.flatnonzero(tokens[:place] == 0)[-1])
    return tokens[start:place]


def _best(model: LanguageModel, context: np.ndarray, like: str, k: int) -> dict[str, float]:
    return _top(model, model.distribution(context), like, k)


def _top(model: LanguageModel, p: np.ndarray, like: str, k: int) -> dict[str, float]:
    """The k most probable words, written with the white space before the token `like`, and ln P."""
    space = like[: len(like) - len(like.lstrip(" \t\r\v\f"))] if like != FINAL else " "
    best = np.argpartition(-p, min(k, len(p) - 1))[:k]
    best = best[np.lexsort((best, -p[best]))]
    with np.errstate(divide="ignore"):
        logs = np.log(p[best]).tolist()
    words = model.vocabulary.words
    return {
        ((FINAL if like == FINAL else "\n") if i == END else space + words[i]): bounded(log_p)
        for i, log_p in zip(best.tolist(), logs, strict=True)
    }


class _Choice:
    """A continuation of a prompt."""

    def __init__(self, model: LanguageModel, prompt: Prompt, asked: CompletionRequest, index: int) -> None:
        self.model, self.prompt, self.asked, self.index = model, prompt, asked, index
        stop = asked.stop or []
        self.stops = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
        self.text = ""  # generated so far
        self.sent = 0  # characters of it

    def events(self) -> Iterator[list[Event]]:
        asked, model = self.asked, self.model
        most = 16 if asked.max_tokens is None else asked.max_tokens
        seed = None if asked.seed is None else (asked.seed, self.index)
        temperature = 1.0 if asked.temperature is None else asked.temperature
        drawn = draw_words(model, self.prompt.context, np.random.default_rng(seed), most, temperature, False)
        begin = len(self.prompt.text) if asked.echo else 0
        finish = "length"
        for word, p in drawn:
            said, at = Logprobs(), begin + len(self.text)
            token = self._written(word)
            top = _top(model, p, token, asked.logprobs) if asked.logprobs else {}
            said.add(token, bounded(float(np.log(p[word]))), top, at)
            finish = "stop" if word == END or self._stopped(token) else finish
            yield [Event(self.index, self._unsent(finish == "stop"), said, tokens=1)]
            if finish == "stop":
                break
        yield [Event(self.index, self._unsent(True), finish=finish)]

    def _written(self, word: int) -> str:
        if word == END:
            return FINAL
        before = (self.prompt.text + self.text)[-1:]
        return (" " if before not in ("", " ", "\n", "\t") else "") + self.model.vocabulary.words[word]

    def _stopped(self, token: str) -> bool:
        """Add a token; cut the text where one of the stop texts begins."""
        self.text += token
        found = [at for at in (self.text.find(stop) for stop in self.stops) if at >= 0]
        self.text = self.text[: min(found)] if found else self.text
        return bool(found)

    def _unsent(self, final: bool) -> str:
        """What can be sent: not yet the end, if a stop text may begin there."""
        held = 0 if final else max((len(stop) - 1 for stop in self.stops), default=0)
        part = self.text[self.sent : max(self.sent, len(self.text) - held)]
        self.sent += len(part)
        return part


class Answer:
    """The parts of a completion, put together, or each as a chunk of a stream."""

    def __init__(self, name: str, asked: CompletionRequest) -> None:
        self.asked = asked
        self.head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()),
                     "model": name}  # fmt: skip

    def chunk(self, event: Event) -> dict[str, Any] | None:
        """An event of a stream; None if it says nothing."""
        if not (event.text or event.logprobs.tokens or event.finish):
            return None
        return {**self.head, "choices": [self._choice(event)]}

    def _choice(self, event: Event) -> dict[str, Any]:
        logprobs = event.logprobs.shown(self.asked.logprobs)
        return {"text": event.text, "index": event.index, "logprobs": logprobs, "finish_reason": event.finish}

    def whole(self, parts: list[Event]) -> dict[str, Any]:
        choices: dict[int, Event] = {}
        for part in parts:
            into = choices.setdefault(part.index, Event(part.index))
            into.text += part.text
            into.finish = part.finish or into.finish
            into.prompt_tokens += part.prompt_tokens
            into.tokens += part.tokens
            for name, values in vars(part.logprobs).items():
                getattr(into.logprobs, name).extend(values)
        n = self.asked.n or 1
        read = sum(c.prompt_tokens for c in choices.values()) // n
        made = sum(c.tokens for c in choices.values())
        usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
        return {**self.head, "choices": [self._choice(c) for c in choices.values()], "usage": usage}


def token_ids(model: LanguageModel, text: str) -> list[int]:
    return prompt_of_text(text, model.vocabulary).ids


def text_of_ids(model: LanguageModel, ids: list[int]) -> str:
    wrong = [i for i in ids if i >= model.vocabulary.first_field]
    if wrong:
        raise Refusal(
            404, f"tokens: {wrong[0]} is no word's id; expected numbers below {model.vocabulary.first_field:,}"
        )
    return prompt_of_ids([i for i in ids if i], model.vocabulary).text if ids else ""
