"""Bodies of requests and answers, as OpenAPI documents them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from snm.server.limits import MAX_NEXT, MAX_TEXTS, MAX_WORDS


def _cleaned(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Line = Annotated[str, AfterValidator(_cleaned)]
"""A text; NUL, and what is no character, count as U+FFFD."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)  # in JSON, 3.0 is a whole number too
SEEDS = (1 << 53) - 1  # the largest number that every program's JSON has exactly
Lines = Annotated[list[Line], Field(min_length=1, max_length=MAX_TEXTS)]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str | None, Field(description="The name of a model, see /models; the first one if none.")] = None


class Streamed(Request):
    stream: Annotated[bool, Field(description="Answer in lines of JSON, each result as soon as it is there.")] = False


class ScoreRequest(Streamed):
    texts: Annotated[Lines, Field(description="Sentences. A line break in one counts as a space.")]
    words: Annotated[bool, Field(description="Score every word too.")] = False
    spelled: Annotated[
        bool | None,
        Field(description="Whether a word outside the vocabulary has the probability of <UNK> times that of its "
                          "spelling, or that of <UNK>; if not given, it is spelled where the model can."),
    ] = None  # fmt: skip


class PerplexityRequest(Request):
    text: Annotated[Line, Field(description="One sentence a line.")]
    sentences: Annotated[bool, Field(description="The perplexity of every sentence too.")] = False


class NextRequest(Request):
    texts: Annotated[Lines, Field(description="Beginnings of sentences; of several lines, the last one counts.")]
    k: Annotated[int, Field(ge=1, le=MAX_NEXT), _WHOLE] = 10
    prefix: Annotated[Line, Field(max_length=1000, description="What the next word begins with.")] = ""


class ExplainRequest(Streamed):
    texts: Annotated[Lines, Field(description="Sentences of up to 500 words each.")]
    top: Annotated[
        Annotated[int, Field(ge=1, le=1000), _WHOLE], Field(description="Features of a word: those that bring most.")
    ] = 20


class GenerateRequest(Streamed):
    prompt: Annotated[Line, Field(description="What each sentence begins with.")] = ""
    n: Annotated[Annotated[int, Field(ge=1, le=MAX_TEXTS), _WHOLE], Field(description="Sentences.")] = 1
    max_words: Annotated[int, Field(ge=1, le=MAX_WORDS), _WHOLE] = 50
    temperature: Annotated[float, Field(ge=0, le=100, description="0 takes the most probable words.")] = 1.0
    unknown: Annotated[bool, Field(description="Sample <UNK> too.")] = False
    seed: Annotated[
        Annotated[int, Field(ge=0, le=SEEDS), _WHOLE] | None, Field(description="To get the same sentences again.")
    ] = None


Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32), _WHOLE]], Field(min_length=1)]
Prompts = (
    Line | Annotated[list[Line], Field(min_length=1, max_length=MAX_TEXTS)] | Ids
    | Annotated[list[Ids], Field(min_length=1, max_length=MAX_TEXTS)]
)  # fmt: skip


class CompletionRequest(BaseModel):
    """The request of OpenAI's completions API. Of the fields that a model of words has no use for, only the values that
    change nothing are accepted."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=MAX_WORDS), _WHOLE] | None = 16
    temperature: Annotated[float | None, Field(ge=0, le=2)] = 1.0
    n: Annotated[int, Field(ge=1, le=128), _WHOLE] | None = 1
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=100), _WHOLE] | None, Field(description="Most probable words of each place.")
    ] = None
    echo: bool | None = False
    stream: bool | None = False
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, le=SEEDS), _WHOLE] | None = None
    top_p: Annotated[float, Field(ge=1, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    best_of: Annotated[int, Field(ge=1, le=1), _WHOLE] | None = None
    suffix: None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None


class TokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    prompt: Line
    model: str | None = None


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32), _WHOLE]], Field(max_length=100_000)]
    model: str | None = None


# ---------------------------------------------------------------------------------------------
# answers. A number is null where there is none: of a blank line, or of what has no probability.


class ScoredWord(BaseModel):
    word: str
    logprob10: float | None
    oov: bool


class ScoredText(BaseModel):
    logprob10: float | None
    tokens: Annotated[int, Field(description="Words and the sentence end.")]
    oov: int
    ppl: float | None
    words: list[ScoredWord] | None = None


class Scores(BaseModel):
    model: str
    results: list[ScoredText]


class Perplexity(BaseModel):
    model: str
    sentences: int
    tokens: int
    oov: int
    oov_rate: float | None
    logprob10: float | None
    ppl: float | None
    ppl_no_oov: float | None
    ppl_spelled: float | None
    bytes: int | None
    bits_per_byte: float | None
    results: Annotated[list[ScoredText] | None, Field(description="Of each sentence, blank lines left out.")] = None


class NextWord(BaseModel):
    word: str
    probability: float


class NextWords(BaseModel):
    model: str
    results: list[list[NextWord]]


class ExplainedPart(BaseModel):
    feature: str
    share: Annotated[float, Field(description="Its part of P(word); those of all features add up to P.")]
    weight: Annotated[float, Field(description="Its part of the whole distribution.")]
    gate: Annotated[float, Field(description="The factor by which the gate multiplies its row.")]
    source: str | None
    shape: Annotated[
        list[int] | None, Field(description="Remote, skipped and adjacent words of the feature, before the word.")
    ]


class ExplainedWord(BaseModel):
    word: str
    probability: float
    sources: Annotated[dict[str, float], Field(description="What each source brings; empty without sources.")]
    parts: list[ExplainedPart]
    more: Annotated[float, Field(description="The shares of all other features together.")]


class Explanations(BaseModel):
    model: str
    results: list[list[ExplainedWord]]


class Sentences(BaseModel):
    model: str
    results: list[str]


class ModelEntry(BaseModel):
    name: str
    kind: str
    words: int
    closed: bool
    features: str | None
    links: int | None
    spells: bool
    explains: bool


class ModelList(BaseModel):
    models: list[ModelEntry]


class Health(BaseModel):
    status: Literal["ok"]
    version: str


class ErrorText(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    error: ErrorText


class Choice(BaseModel):
    text: str
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class OpenAiModel(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAiModels(BaseModel):
    object: Literal["list"]
    data: list[OpenAiModel]


class Tokens(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str
    pad_token: str | None
    chat_template: str | None
