"""The application: paths, what answers them, and how errors are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from snm import system
from snm.arguments import shown
from snm.errors import SnmError
from snm.model import LanguageModel
from snm.server import answers, completions
from snm.server import requests as schemas
from snm.server.guard import App, Guard, error_body
from snm.server.limits import Limits, Refusal
from snm.server.metrics import Metrics
from snm.server.work import Workers, as_json, json_response
from snm.version import __version__

PAGE = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"),
        "/page.css": ("page.css", "text/css")}  # fmt: skip
ABOUT = """Language models by HTTP. A request names a `model` of `/models`, or means the first one. Errors have the form
of OpenAI's, with a message of one line: 400 for what is not valid, 401 for a missing token, 404 for an unknown model,
408 and 413 for what is too slow or too large, 429 for too many requests at a time."""
REFUSALS = {400: "not valid", 401: "the token is missing", 404: "no such model", 408: "too slow",
            413: "too large, or takes too long", 429: "too many requests at a time"}  # fmt: skip
RELEASE = 10.0  # seconds between two returns of freed memory
MAX_MODEL_LENGTH = 1 << 16  # words of a prompt, for programs that ask; only the limits of a request count


class Service:
    """Models by name, and what they answer."""

    def __init__(self, models: Mapping[str, LanguageModel], limits: Limits, threads: int) -> None:
        self.models, self.started = dict(models), int(time.time())
        self.metrics, self.workers = Metrics(), Workers(threads, limits.seconds)

    def model(self, name: str | None) -> tuple[str, LanguageModel]:
        name = next(iter(self.models)) if name is None else name
        if name not in self.models:
            raise Refusal(404, f"model {shown(name)} is not served; expected one of {', '.join(self.models)}")
        return name, self.models[name]

    async def rows(self, make: Callable[..., Iterator[list[Any]]], asked: Any) -> Response:
        name, model = self.model(asked.model)
        return await self.workers.answer(name, make(model, asked), getattr(asked, "stream", False))

    async def perplexity(self, asked: schemas.PerplexityRequest) -> Response:
        name, model = self.model(asked.model)
        found = await self.workers.run(answers.perplexity, model, asked)
        return json_response({"model": name, **found})

    async def complete(self, asked: schemas.CompletionRequest) -> Response:
        name, model = self.model(asked.model)
        answer, events = completions.Answer(name, asked), completions.events(model, asked)
        if asked.stream:
            parts = await self.workers.begun(events, partial(_chunk, answer), b"data: ", b"\n\n", b"data: [DONE]\n\n")
            return StreamingResponse(parts, media_type="text/event-stream")
        found = list[completions.Event]()

        def collect(event: completions.Event) -> bytes:
            found.append(event)
            return b""

        async for _ in self.workers.pieces(events, collect):
            pass
        return json_response(await self.workers.run(answer.whole, found))

    async def release_memory(self) -> None:
        """Return freed memory to the system, again and again: the C library keeps what large requests took."""
        while True:
            await asyncio.sleep(RELEASE)
            await self.workers.run(system.release_free_memory)

    def without_paths(self, message: str) -> str:
        """A message with the names of models instead of their folders."""
        for name, model in self.models.items():
            message = message.replace(str(model.path), name)
        return message

    def entries(self) -> list[dict[str, Any]]:
        return [_entry(name, model) for name, model in self.models.items()]


def _chunk(answer: completions.Answer, event: completions.Event) -> bytes:
    chunk = answer.chunk(event)
    return b"" if chunk is None else as_json(chunk)


def _entry(name: str, model: LanguageModel) -> dict[str, Any]:
    manifest, vocabulary = model.manifest, model.vocabulary
    return {
        "name": name, "kind": manifest["kind"], "words": vocabulary.first_field, "closed": vocabulary.closed,
        "features": manifest.get("features"), "links": manifest.get("links"), "spells": model.spelling is not None,
        "explains": type(model).explain is not LanguageModel.explain,
    }  # fmt: skip


def create_app(
    models: Mapping[str, LanguageModel], limits: Limits | None = None, *, token: str | None = None,
    hosts: list[str] | None = None, threads: int = 1,
) -> App:  # fmt: skip
    """An ASGI application that serves models by name. `hosts`: names in the Host header that it answers, or any."""
    limits = limits or Limits()
    service = Service(models, limits, threads)
    app = FastAPI(title="SNM", version=__version__, description=ABOUT, docs_url=None, redoc_url=None,
                  lifespan=partial(_lifespan, service))  # fmt: skip
    _add_errors(app, service)
    _add_paths(app, service)
    _add_openai_paths(app, service)
    _document(app, token)
    paths = [route.path for route in app.routes if hasattr(route, "path")]
    return Guard(app, limits, service.metrics, token, hosts, paths)


@asynccontextmanager
async def _lifespan(service: Service, app: FastAPI) -> AsyncIterator[None]:
    releasing = asyncio.create_task(service.release_memory())
    yield
    releasing.cancel()
    with suppress(asyncio.CancelledError):
        await releasing
    service.workers.close()


def _add_paths(app: FastAPI, service: Service) -> None:
    post = partial(_post, app)

    @post("score", schemas.Scores, streams="application/x-ndjson")
    async def score(asked: schemas.ScoreRequest) -> Response:
        """log10 probabilities of sentences, their ends included, and of their words."""
        return await service.rows(answers.scores, asked)

    @post("perplexity", schemas.Perplexity)
    async def perplexity(asked: schemas.PerplexityRequest) -> Response:
        """Perplexity of a text, and of its sentences. Words outside the vocabulary count as <UNK>."""
        return await service.perplexity(asked)

    @post("next", schemas.NextWords)
    async def next_words(asked: schemas.NextRequest) -> Response:
        """The most probable next words."""
        return await service.rows(answers.next_words, asked)

    @post("explain", schemas.Explanations, streams="application/x-ndjson")
    async def explain(asked: schemas.ExplainRequest) -> Response:
        """The features of each word of sentences, and their shares of its probability; none of a blank one."""
        return await service.rows(answers.explanations, asked)

    @post("generate", schemas.Sentences, streams="application/x-ndjson")
    async def generate(asked: schemas.GenerateRequest) -> Response:
        """Sampled sentences."""
        return await service.rows(answers.generated, asked)

    @app.get("/models", response_model=schemas.ModelList, responses=_refusals(401))
    async def models() -> Response:
        """The models, and what they can do."""
        return json_response({"models": service.entries()})

    @app.get("/health", response_model=schemas.Health)
    async def health() -> Response:
        """Whether the server answers."""
        return json_response({"status": "ok", "version": __version__})

    figures: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @app.get("/metrics", response_class=Response, responses=_refusals(401) | figures)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    for url, (name, media_type) in PAGE.items():
        content = (resources.files("snm.server") / "page" / name).read_bytes()
        app.add_route(url, _static(content, media_type), include_in_schema=False)


def _post(app: FastAPI, path: str, answer: Any, streams: str | None = None, tag: str = "snm") -> Any:
    """A path that answers an object, or with `stream` in the request a stream of this media type."""
    ok: dict[str, Any] = {"description": "The answer; with stream, a part of it a line." if streams else "The answer."}
    if streams is not None:
        ok["content"] = {streams: {"schema": {"description": "JSON a line; an object with error if the work failed."}}}
    responses = _refusals(400, 401, 404, 408, 413, 429) | {200: ok}
    return app.post(f"/{path}", response_model=answer, responses=responses, tags=[tag])


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schemas.Failure, "description": REFUSALS[status]} for status in statuses}


def _static(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


def _add_openai_paths(app: FastAPI, service: Service) -> None:
    post = partial(_post, app, tag="OpenAI")

    @post("v1/completions", schemas.Completion, streams="text/event-stream")
    async def complete(asked: schemas.CompletionRequest) -> Response:
        """OpenAI's completions: a token is a word, or the end of a line."""
        return await service.complete(asked)

    @app.get("/v1/models", response_model=schemas.OpenAiModels, responses=_refusals(401), tags=["OpenAI"])
    async def models() -> Response:
        """The names of the models."""
        own = {"object": "model", "created": service.started, "owned_by": "snm"}
        return json_response({"object": "list", "data": [{"id": name, **own} for name in service.models]})

    @post("tokenize", schemas.Tokens)
    async def tokenize(asked: schemas.TokenizeRequest) -> Response:
        """The ids of the words of a text, and that of </S> for the end of a line."""
        ids = completions.token_ids(service.model(asked.model)[1], asked.prompt)
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": MAX_MODEL_LENGTH})

    @post("detokenize", schemas.Detokenized)
    async def detokenize(asked: schemas.DetokenizeRequest) -> Response:
        """The text of ids."""
        return json_response({"prompt": completions.text_of_ids(service.model(asked.model)[1], asked.tokens)})

    @app.get("/tokenizer_info", response_model=schemas.TokenizerInfo, responses=_refusals(401), tags=["OpenAI"])
    async def tokenizer_info() -> Response:
        """What evaluation harnesses ask first."""
        return json_response({"tokenizer_class": "words", "bos_token": None, "eos_token": "</s>", "pad_token": None,
                              "chat_template": None})  # fmt: skip


def _add_errors(app: FastAPI, service: Service) -> None:
    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> Response:
        return _error(refusal.status, refusal.message, refusal.headers)

    @app.exception_handler(SnmError)
    async def reject(request: Request, error: SnmError) -> Response:
        return _error(400, service.without_paths(str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        if first["type"] == "json_invalid":
            return _error(400, 'the body is no JSON; expected an object, such as {"texts": ["a sentence"]}')
        return _error(400, f"{where}: {first['msg']}" if where else f"the body: {first['msg']}", param=where or None)

    @app.exception_handler(HTTPException)
    async def wrong_path(request: Request, error: HTTPException) -> Response:
        what = {404: "no such path; /openapi.json lists them", 405: f"{request.method} is not answered here"}
        return _error(error.status_code, what.get(error.status_code, str(error.detail)), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        return _error(500, "the server failed; its log says why")


def _error(status: int, message: str, headers: dict[str, str] | None = None, param: str | None = None) -> Response:
    line = " ".join(message.split())[:2000]
    return Response(error_body(status, line, param), status, headers, media_type="application/json")


def _document(app: FastAPI, token: str | None) -> None:
    """OpenAPI as we answer: 400 instead of 422, and the token where there is one."""
    described = app.openapi()
    for path in described["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        described["components"]["schemas"].pop(name, None)
    if token is not None:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
        described["paths"]["/health"]["get"]["security"] = []
