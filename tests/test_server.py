"""The server: what it answers, what it refuses, and OpenAI's client."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import snm
from snm.cli.serve import name_models
from snm.errors import SettingsError
from snm.layouts.tokens import BEGIN
from tests.test_cli import fails

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="needs the extra serve")

from snm.server.limits import Limits  # noqa: E402
from snm.server.prompts import log_probabilities, prompt_of_ids, prompt_of_text  # noqa: E402
from tests.serving import serving  # noqa: E402

GOLDEN = Path(__file__).parent / "golden" / "format3"
NAMES = ("snm", "backoff", "sources", "mixture", "lstm")
TEXTS = ["the old stone holds the lantern", "a lantern", "", "the stone zork"]


@pytest.fixture(scope="module")
def models(model_path: Path) -> dict[str, snm.LanguageModel]:
    return {"small": snm.load(model_path), **{name: snm.load(GOLDEN / name) for name in NAMES}}


@pytest.fixture(scope="module")
def address(models: dict[str, snm.LanguageModel]) -> Iterator[str]:
    with serving(models, Limits(max_bytes=100_000, seconds=120), threads=2) as found:
        yield found


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def message(self) -> str:
        """The message of an error, which is one line."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "\n" not in error["message"]
        return str(error["message"])


def call(address: str, path: str, body: Any = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, given)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def results(address: str, path: str, **body: Any) -> Any:
    answer = call(address, path, body)
    assert answer.status == 200, answer.body
    assert answer.json["model"] == body.get("model", "small")
    return answer.json["results"]


class TestAnswers:
    """The server answers as the models do."""

    @pytest.mark.parametrize("name", ["small", *NAMES])
    def test_scores(self, address: str, models: dict[str, snm.LanguageModel], name: str) -> None:
        model = models[name]
        spelled = model.spelling is not None
        expected = model.score_sentences(TEXTS, spelled=spelled)
        for words in (False, True):
            found = results(address, "/score", model=name, texts=TEXTS, words=words)
            assert found[2]["logprob10"] is None
            np.testing.assert_allclose([row["logprob10"] or math.nan for row in found], expected, rtol=1e-6)
        for row, scored in zip(found, model.score_words(TEXTS, spelled=spelled), strict=True):
            assert [word["word"] for word in row["words"]] == [word for word, _ in scored]
            assert row["tokens"] == len(scored)
            assert row["oov"] == sum(word["oov"] for word in row["words"])
        known = results(address, "/score", model=name, texts=TEXTS[:2], spelled=False)
        for row, text in zip(known, TEXTS, strict=False):
            assert row["ppl"] == pytest.approx(model.perplexity([text]).ppl, rel=1e-5)

    def test_a_stream_has_the_same_rows(self, address: str) -> None:
        texts = [f"the cat sees fish {i}" for i in range(1000)]
        whole = results(address, "/score", texts=texts)
        streamed = call(address, "/score", {"texts": texts, "stream": True})
        assert streamed.headers["content-type"] == "application/x-ndjson"
        assert streamed.lines == whole

    @pytest.mark.parametrize("name", ["small", *NAMES])
    def test_perplexity(self, address: str, models: dict[str, snm.LanguageModel], name: str) -> None:
        text = "\n".join(TEXTS)
        found = call(address, "/perplexity", {"model": name, "text": text, "sentences": True}).json
        report = models[name].perplexity(TEXTS)
        for field in ("sentences", "tokens", "oov", "oov_rate", "logprob10", "ppl", "ppl_no_oov", "bytes"):
            assert found[field] == pytest.approx(getattr(report, field)), field
        assert len(found["results"]) == report.sentences
        assert sum(row["logprob10"] for row in found["results"]) == pytest.approx(report.logprob10)
        assert sum(row["tokens"] for row in found["results"]) == report.tokens

    def test_perplexity_of_nothing(self, address: str) -> None:
        found = call(address, "/perplexity", {"text": " \n", "sentences": True}).json
        assert (found["tokens"], found["ppl"], found["results"]) == (0, None, [])

    @pytest.mark.parametrize("name", ["small", *NAMES])
    def test_next_words(self, address: str, models: dict[str, snm.LanguageModel], name: str) -> None:
        found = results(address, "/next", model=name, texts=["the old", "the", "a line\nthe"], k=5)
        for row, text in zip(found, ["the old", "the", "the"], strict=True):
            expected = models[name].next_words(text, k=5)
            assert [word["word"] for word in row] == [word for word, _ in expected]
            assert [word["probability"] for word in row] == pytest.approx([p for _, p in expected])

    def test_next_words_with_a_beginning(self, address: str, models: dict[str, snm.LanguageModel]) -> None:
        (found,) = results(address, "/next", texts=["the"], prefix="c", k=10)
        assert {word["word"] for word in found} == {"cat", "cake"}
        every = dict(models["small"].next_words("the", k=1000))
        assert {word["word"]: word["probability"] for word in found} == pytest.approx(
            {word: p for word, p in every.items() if word.startswith("c")}
        )
        assert results(address, "/next", texts=["the"], prefix="zz") == [[]]

    @pytest.mark.parametrize("name", ["small", "snm", "sources"])
    def test_explanations(self, address: str, models: dict[str, snm.LanguageModel], name: str) -> None:
        found = results(address, "/explain", model=name, texts=["the old stone", ""], top=3)
        assert found[1] == []
        for row, expected in zip(found[0], models[name].explain("the old stone"), strict=True):
            assert (row["word"], row["sources"]) == (expected.word, expected.sources)
            assert sum(part["share"] for part in row["parts"]) + row["more"] == pytest.approx(expected.probability)
            assert [part["feature"] for part in row["parts"]] == [part.feature for part in expected.parts[:3]]

    def test_shapes_of_features(self, models: dict[str, snm.LanguageModel]) -> None:
        """(r, s, a) says which words a feature has."""
        words = ["the", "old", "man", "likes", "the", "cat"]
        for at, explanation in enumerate(models["small"].explain(words)):
            context = ["<S>", *words][: at + 1]
            for part in explanation.parts:
                assert part.shape is not None
                r, s, a = part.shape
                remote = context[len(context) - r - s - a : len(context) - s - a]
                own = [word for word in part.feature[1:-1].split() if not word.startswith("skip-")]
                assert own == remote + context[len(context) - a :]

    def test_generation(self, address: str, models: dict[str, snm.LanguageModel]) -> None:
        asked = {"prompt": "the", "n": 3, "seed": 5, "max_words": 6}
        found = results(address, "/generate", **asked)
        assert found == [models["small"].generate("the", seed=(5, i), max_words=6) for i in range(3)]
        assert call(address, "/generate", {**asked, "stream": True}).lines == found
        (sure,) = results(address, "/generate", temperature=0, max_words=3)
        model, words = models["small"], list[str]()
        while len(words) < 3:
            words.append(model.next_words(" ".join(words), k=1)[0][0])
        assert sure.split() == words

    def test_models(self, address: str, models: dict[str, snm.LanguageModel]) -> None:
        entries = call(address, "/models").json["models"]
        assert [entry["name"] for entry in entries] == ["small", *NAMES]
        assert [entry["explains"] for entry in entries] == [True, True, False, True, False, False]
        assert entries[0]["links"] == models["small"].manifest["links"]
        assert "golden" not in json.dumps(entries)

    def test_many_at_a_time(self, address: str, models: dict[str, snm.LanguageModel]) -> None:
        texts = [f"the {word} sees" for word in ("cat", "dog", "fish", "cake", "man") * 20]
        expected = models["small"].score_sentences(texts, spelled=True)
        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(lambda text: results(address, "/score", texts=[text])[0]["logprob10"], texts))
        assert found == pytest.approx(expected, rel=1e-6)

    def test_figures(self, address: str) -> None:
        call(address, "/no/such/path")
        found = call(address, "/metrics").body.decode()
        assert re.search(r'snm_requests_total\{path="/score",status="200"\} [1-9]', found)
        assert re.search(r'snm_requests_total\{path="other",status="404"\} [1-9]', found)
        assert "snm_requests_in_progress 1.0" in found
        assert call(address, "/health").json == {"status": "ok", "version": snm.__version__}


class TestRefusals:
    @pytest.mark.parametrize(
        ("path", "body", "status", "said"),
        [
            ("/score", {"texts": ["a"], "model": "none"}, 404, "model 'none' is not served; expected one of small"),
            ("/score", {"texts": []}, 400, "texts"),
            ("/score", {"texts": "a"}, 400, "texts"),
            ("/score", {"texts": ["a"], "word": True}, 400, "word"),
            ("/score", {"texts": ["a"], "spelled": True, "model": "snm"}, 400, "spelled: this model has no spelling"),
            ("/score", b"{", 400, "no JSON"),
            ("/score", b"[" * 50_000, 400, "body"),
            ("/score", b"\xff", 400, "body"),
            ("/score", {"texts": ["a" * 200_000]}, 413, "more than 100,000 bytes"),
            ("/score", b" " * 1_500_000, 413, "more than 100,000 bytes"),
            ("/next", {"texts": ["a"], "k": 0}, 400, "k: "),
            ("/next", {"texts": ["a"], "k": "5"}, 400, "k: "),
            ("/explain", {"texts": ["a"], "model": "backoff"}, 400, "backoff is not one"),
            ("/explain", {"texts": ["a " * 501]}, 413, "501 words"),
            ("/generate", {"temperature": -1}, 400, "temperature"),
            ("/generate", {"max_words": 10**9}, 400, "max_words"),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix"),
            ("/v1/completions", {"prompt": [[10**6]]}, 404, "no word's id"),
            ("/v1/completions", {"prompt": []}, 400, "prompt"),
            ("/v1/completions", {"prompt": "a", "model": "gpt"}, 404, "not served"),
            ("/detokenize", {"tokens": [10**9]}, 404, "no word's id"),
            ("/no", {}, 404, "no such path"),
            ("/health", {}, 405, "POST"),
        ],
    )  # fmt: skip
    def test_what_is_not_valid(self, address: str, path: str, body: Any, status: int, said: str) -> None:
        answer = call(address, path, body)
        assert (answer.status, said in answer.message) == (status, True), answer.body

    @pytest.mark.parametrize("text", ["\ud800", "a\0b", "\u2028", "<s> </s>", "\r\n", "\U0010ffff", "a" * 50_000])
    def test_odd_texts_have_answers(self, address: str, text: str) -> None:
        body = json.dumps({"texts": [text], "words": True}).encode()
        assert call(address, "/score", body).status == 200
        for path in ("/next", "/explain"):
            assert call(address, path, json.dumps({"texts": [text]}).encode()).status == 200
        completion = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1}
        assert call(address, "/v1/completions", json.dumps(completion).encode()).status == 200

    def test_paths_are_not_told(self, address: str, models: dict[str, snm.LanguageModel]) -> None:
        said = call(address, "/explain", {"texts": ["a"], "model": "lstm"}).message
        assert str(models["lstm"].path) not in said

    @pytest.mark.parametrize("path", ["/../pyproject.toml", "/page/index.html", "/page.js/../app.py", "//etc/passwd"])
    def test_no_path_leads_to_files(self, address: str, path: str) -> None:
        assert call(address, path).status == 404

    def test_other_hosts(self, address: str) -> None:
        """A page elsewhere whose name points here reads nothing."""
        assert "Host" in call(address, "/models", Host="evil.example").message
        assert call(address, "/models", Host="localhost:80").status == 200

    def test_forms_of_other_pages(self, address: str) -> None:
        """A request that a browser sends to other servers without asking them first has no answer."""
        assert call(address, "/score", b'{"texts": ["a"]}', Content_Type="text/plain").status == 400

    def test_the_token(self, models: dict[str, snm.LanguageModel]) -> None:
        with serving({"small": models["small"]}, token="secret") as address:
            for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Basic secret"}):
                answer = call(address, "/score", {"texts": ["a"]}, **headers)
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert call(address, "/metrics").status == 401
            assert call(address, "/score", {"texts": ["a"]}, Authorization="Bearer secret").status == 200
            assert call(address, "/health").status == call(address, "/").status == 200

    def test_a_slow_request(self, models: dict[str, snm.LanguageModel]) -> None:
        with serving({"small": models["small"]}, Limits(seconds=0.3)) as address:
            head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
            assert b"408" in _said(address, head).partition(b"\r\n")[0]
            assert _said(address, b"POST /score HT") == b""
            assert _said(address, b"") == b""

    def test_long_work_is_ended(self, models: dict[str, snm.LanguageModel]) -> None:
        with serving({"small": models["small"]}, Limits(seconds=0.05)) as address:
            asked = {"n": 1000, "max_words": 1000, "temperature": 100.0}
            answer = call(address, "/generate", asked)
            assert (answer.status, "longer than 0.05 seconds" in answer.message) == (413, True)
            assert "longer than" in call(address, "/generate", {**asked, "stream": True}).lines[-1]["error"]["message"]

    def test_too_many_at_a_time(self, models: dict[str, snm.LanguageModel]) -> None:
        body = {"n": 300, "max_words": 100, "temperature": 100.0}
        with serving({"small": models["small"]}, Limits(max_requests=2)) as address, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: call(address, "/generate", body), range(8)))
            assert {answer.status for answer in found} == {200, 429}
            refused = next(answer for answer in found if answer.status == 429)
            assert (refused.headers["retry-after"], "try again" in refused.message) == ("1", True)
            assert call(address, "/generate", body).status == 200

    def test_malformed_requests(self, address: str) -> None:
        for data in (
            b"\0\0\0\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /score HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        ):
            assert _said(address, data).startswith(b"HTTP/1.1 400")
        assert call(address, "/health").status == 200

    def test_a_huge_request_is_not_read(self, address: str) -> None:
        head = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        assert _said(address, head).startswith(b"HTTP/1.1 413")


def _said(address: str, data: bytes) -> bytes:
    """Send bytes; what is answered until the connection is closed."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


class TestPrompts:
    @pytest.mark.parametrize(
        "text", ["", " ", "the cat", " the  cat ", "the\nfish\n", "\n\nthe\n \n cat", "a\r\nb", "</s> a <s> b\n"]
    )  # fmt: skip
    def test_pieces_join_to_the_text(self, models: dict[str, snm.LanguageModel], text: str) -> None:
        prompt = prompt_of_text(text, models["small"].vocabulary)
        assert prompt.text == (text if text.strip() else "")
        assert len(prompt.ids) == len(prompt.pieces) == len(prompt.places)
        assert prompt.tokens[0] == BEGIN

    @pytest.mark.parametrize("name", ["small", "snm", "backoff"])
    def test_log_probabilities(self, models: dict[str, snm.LanguageModel], name: str) -> None:
        model = models[name]
        prompt = prompt_of_text("the cat zork\n\nsees <unk>\n", model.vocabulary)
        expected = model.score_words(["the cat zork", "sees <unk>"], spelled=model.spelling is not None)
        flat = [p * math.log(10) for words in expected for _, p in words]
        assert log_probabilities(model, prompt) == pytest.approx(flat)

    def test_documents(self) -> None:
        vocabulary = snm.Vocabulary(["a", "b"], document=True)
        assert prompt_of_text("a\nb\n\na b", vocabulary).tokens.tolist() == [0, 3, 1, 4, 1, 0, 3, 4]

    def test_fields(self, corpus_file: Path, tmp_path: Path) -> None:
        """What lines say of their speakers is context, and no piece."""
        lines = [f"speaker={'ab'[k % 2]} {line}" for k, line in enumerate(corpus_file.read_text().split("\n")[:-1])]
        model = snm.train(
            iter(lines), tmp_path / "m", snm.Settings(features="small + side(speaker)", fields="speaker", threads=1)
        )
        text = "speaker=a the cat\nspeaker=zork a speaker=b\nsees"
        prompt = prompt_of_text(text, model.vocabulary)
        assert "".join(prompt.pieces) == text
        assert len(prompt.pieces) == 7
        expected = [p * math.log(10) for words in model.score_words(text.split("\n"), spelled=True) for _, p in words]
        assert log_probabilities(model, prompt) == pytest.approx(expected[:-1])
        with serving({"m": model}) as address:
            body = {"texts": ["speaker=b the cat", "speaker=b"]}
            found = call(address, "/explain", body).json["results"]
            assert [[row["word"] for row in rows] for rows in found] == [["the", "cat", "</S>"], []]
            (best,) = call(address, "/next", {"texts": ["speaker=b the"], "k": 3}).json["results"]
            assert best[0]["probability"] == pytest.approx(model.next_words("speaker=b the", k=1)[0][1])

    def test_ids(self, models: dict[str, snm.LanguageModel]) -> None:
        vocabulary = models["small"].vocabulary
        text = prompt_of_text("the cat\nsees fish", vocabulary)
        ids = prompt_of_ids(text.ids, vocabulary)
        assert (ids.text, ids.pieces) == (text.text, text.pieces)
        assert prompt_of_ids([1, 3], vocabulary).tokens.tolist() == [0, 1, 0, 3]


class TestOpenAi:
    @pytest.fixture
    def client(self, address: str) -> Iterator[Any]:
        openai = pytest.importorskip("openai")
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            yield client

    def test_models(self, client: Any) -> None:
        assert [model.id for model in client.models.list()] == ["small", *NAMES]

    def test_scoring_a_text(self, client: Any, models: dict[str, snm.LanguageModel]) -> None:
        text = "the cat sees fish\na dog likes zork"
        found = client.completions.create(model="small", prompt=text, max_tokens=0, echo=True, logprobs=2)
        (choice,) = found.choices
        assert choice.text == text
        said = choice.logprobs
        assert "".join(said.tokens) == text
        assert [text[at : at + len(t)] for at, t in zip(said.text_offset, said.tokens, strict=True)] == said.tokens
        expected = models["small"].score_words(text.split("\n"), spelled=True)
        flat = [p * math.log(10) for words in expected for _, p in words][:-1]
        assert said.token_logprobs == pytest.approx(flat)
        best = math.log(models["small"].next_words("the", k=1)[0][1])
        assert max(said.top_logprobs[1].values()) == pytest.approx(best)
        assert found.usage.prompt_tokens == len(flat)

    def test_as_harnesses_score(self, client: Any, models: dict[str, snm.LanguageModel]) -> None:
        """By ids, with one more word generated; whether the text is the most probable one."""
        vocabulary = models["small"].vocabulary
        prompts = [prompt_of_text(text, vocabulary).ids for text in ("the cat sees", "the old man\nthe")]
        found = client.completions.create(
            model="small", prompt=prompts, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1
        )
        for choice, ids in zip(found.choices, prompts, strict=True):
            said = choice.logprobs
            assert len(said.token_logprobs) == len(ids) + 1
            assert all(said.top_logprobs[k][t] == said.token_logprobs[k] for k, t in enumerate(said.tokens))
            assert max(said.top_logprobs[-1].values()) == said.token_logprobs[-1]

    def test_generation(self, client: Any, models: dict[str, snm.LanguageModel]) -> None:
        asked = {"model": "small", "prompt": "the", "max_tokens": 8, "seed": 3, "n": 2, "logprobs": 0}
        first, again = (client.completions.create(**asked) for _ in range(2))
        assert [c.text for c in first.choices] == [c.text for c in again.choices]
        for choice in first.choices:
            words = choice.logprobs.tokens
            assert choice.finish_reason == ("stop" if words[-1] == "</S>" else "length")
            scored = models["small"].score_words(["the" + choice.text])[0][1 : len(words) + 1]
            assert choice.logprobs.token_logprobs == pytest.approx([p * math.log(10) for _, p in scored])
        assert first.usage.completion_tokens == sum(len(c.logprobs.tokens) for c in first.choices)

    def test_streams(self, client: Any) -> None:
        asked = {"model": "small", "prompt": ["the", "a dog"], "max_tokens": 8, "seed": 3, "logprobs": 1, "echo": True}
        whole = client.completions.create(**asked)
        texts, ends, tokens = ["", ""], ["", ""], 0
        for chunk in client.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                ends[choice.index] = choice.finish_reason or ends[choice.index]
                tokens += len(choice.logprobs.tokens)
        assert texts == [c.text for c in whole.choices]
        assert ends == [c.finish_reason for c in whole.choices]
        assert tokens == whole.usage.total_tokens

    def test_stop_texts(self, client: Any) -> None:
        asked = {"model": "small", "prompt": "the", "temperature": 0, "max_tokens": 10}
        whole = client.completions.create(**asked).choices[0].text
        stop = whole[3:6]
        for stream in (False, True):
            found = client.completions.create(**asked, stop=[stop, "never"], stream=stream)
            chunks = list(found) if stream else [found]
            assert "".join(c.text for chunk in chunks for c in chunk.choices) == whole[: whole.index(stop)]
            assert chunks[-1].choices[0].finish_reason == "stop"

    def test_errors(self, client: Any) -> None:
        openai = pytest.importorskip("openai")
        with pytest.raises(openai.NotFoundError, match="not served"):
            client.completions.create(model="gpt", prompt="a")
        with pytest.raises(openai.BadRequestError, match="top_p"):
            client.completions.create(model="small", prompt="a", top_p=0.5)

    def test_the_tokenizer_of_harnesses(self, address: str, models: dict[str, snm.LanguageModel]) -> None:
        assert call(address, "/tokenizer_info").json["eos_token"] == "</s>"
        found = call(address, "/tokenize", {"prompt": "the cat\nsees", "add_special_tokens": False}).json
        assert found["tokens"] == prompt_of_text("the cat\nsees", models["small"].vocabulary).ids
        assert call(address, "/tokenize", {"prompt": "</s>"}).json["tokens"] == [1]
        assert call(address, "/detokenize", {"tokens": found["tokens"]}).json == {"prompt": "the cat\nsees"}


def test_freed_memory_is_returned(models: dict[str, snm.LanguageModel], monkeypatch: pytest.MonkeyPatch) -> None:
    returned = list[str]()
    monkeypatch.setattr("snm.server.app.RELEASE", 0.001)
    monkeypatch.setattr("snm.system.release_free_memory", lambda: returned.append("memory"))
    with serving({"small": models["small"]}) as address:
        _until(lambda: len(returned) > 2)
        assert call(address, "/health").status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_load_of_many_clients(model_path: Path) -> None:
    """A sample of `make soak`: every answer is compared with the model's, and no file stays open."""
    given = [f"small={model_path}", *(f"{name}={GOLDEN / name}" for name in NAMES)]
    script = ["benchmarks/serving.py", *given, "--requests", "300", "--clients", "20"]
    done = subprocess.run(
        [sys.executable, *script], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no wrong answer; nothing leaks" in done.stdout


def test_the_api_is_as_described(models: dict[str, snm.LanguageModel], tmp_path: Path) -> None:
    """Schemathesis sends valid and invalid requests to every path of the OpenAPI document."""
    pytest.importorskip("schemathesis")
    with serving({"small": models["small"]}, Limits(seconds=60), threads=2) as address:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--max-examples", "15",
            "--seed", "1", "--no-color", "--generation-database", "none",
        ]  # fmt: skip
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


class TestCommand:
    def test_names(self) -> None:
        named = name_models(("a/b.model", "c.arpa", "x=d/", "e/f=g.model", "h/"))
        assert named == {"b": "a/b.model", "c": "c.arpa", "x": "d/", "f=g": "e/f=g.model", "h": "h/"}
        with pytest.raises(SettingsError, match="two models are called b"):
            name_models(("a/b", "c/b"))

    def test_mistakes(self, model_path: Path) -> None:
        assert "no such model" in fails("serve", "none.model", "--port", "0")
        assert "NAME=MODEL" in fails("serve", model_path, model_path, "--port", "0")
        assert "expected a name or an address" in fails("serve", model_path, "--host", "no.such.host.invalid")
        assert "token" in fails("serve", model_path, "--token", "a b")
        assert "above 0" in fails("serve", model_path, "--max-seconds", "0")
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert "give another --port" in fails("serve", model_path, "--port", other.getsockname()[1])

    @pytest.mark.skipif(os.name == "nt", reason="signals differ")
    def test_it_ends_when_it_has_answered(self, model_path: Path) -> None:
        command = [sys.executable, "-m", "snm", "serve", str(model_path), "--port", "0", "--threads", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "http" in line)
            found = re.search(r"http://\S+?(?=/ )", line)
            assert found is not None
            with ThreadPoolExecutor(1) as pool:
                body = {"n": 300, "max_words": 300, "temperature": 100.0}
                answer = pool.submit(call, found[0], "/generate", body)
                _until(lambda: b"in_progress 2.0" in call(found[0], "/metrics").body)
                server.send_signal(signal.SIGTERM)
                assert len(answer.result().json["results"]) == 300
            assert server.wait(20) == 0
            assert server.stderr.read() == ""


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)
