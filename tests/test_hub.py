"""Models on the Hub: what the package huggingface_hub sends and stores, against a Hub on the loopback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import snm
from snm.errors import FormatError, InputError, ModelNotFound, SettingsError
from snm.integrations.model_card import model_card
from snm.storage import MANIFEST, check_files
from tests.hub_stub import TOKEN, Hub, running
from tests.test_cli import fails, ok

NAME = "me/first"
SENTENCE = "the cat sees fish"
pytestmark = pytest.mark.filterwarnings("default")  # what the package itself warns of is not our concern


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that is empty, and a client that knows no other. Xet, whose client is compiled code, is not tested."""
    pytest.importorskip("huggingface_hub", reason="needs the package huggingface_hub")
    from huggingface_hub import constants

    with running() as server:
        for constant, value in {
            "ENDPOINT": server.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "AGENT_HARNESSES_PATH": str(tmp_path / "harnesses"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }.items():
            monkeypatch.setattr(constants, constant, value, raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def published(hub: Hub, model: Path, name: str = NAME) -> dict[str, bytes]:
    """Put a model into the Hub, without the client; return its files."""
    files = {file.relative_to(model).as_posix(): file.read_bytes() for file in model.rglob("*") if file.is_file()}
    hub.commit(name, files)
    return files


def changed(hub: Hub, name: str = NAME, **entries: object) -> None:
    """Commit a manifest with other entries."""
    manifest = json.loads(hub.files(name)[MANIFEST])
    hub.commit(name, {MANIFEST: json.dumps({**manifest, **entries}).encode()})


def test_a_model_is_pushed_and_opened(hub: Hub, model_path: Path, tmp_path: Path) -> None:
    model = snm.load(model_path)
    assert snm.push_to_hub(model, NAME, license="mit", perplexities={"x": 12.5}) == f"{hub.address}/{NAME}"
    files = hub.files(NAME)
    assert set(files) == {".gitattributes", "README.md", MANIFEST, *model.manifest["files"]}
    assert files[MANIFEST] == (model_path / MANIFEST).read_bytes()
    opened = snm.from_pretrained(NAME)
    assert opened == model
    assert opened.score(SENTENCE) == model.score(SENTENCE)
    assert opened.path.is_relative_to(tmp_path / "cache")
    assert not any(file.is_symlink() for file in opened.path.rglob("*"))


def test_a_mixture_has_folders(hub: Hub, corpus_file: Path, model_path: Path, tmp_path: Path) -> None:
    other = snm.train(corpus_file, tmp_path / "kn", snm.Settings(model="kn", order=2, threads=1))
    mixed = snm.mix([model_path, other], corpus_file, tmp_path / "mixed")
    snm.push_to_hub(mixed, NAME)
    assert "member1/offsets.npy" in hub.files(NAME)
    assert snm.from_pretrained(NAME).score(SENTENCE) == mixed.score(SENTENCE)


def test_only_the_files_of_the_manifest_are_taken(hub: Hub, model_path: Path) -> None:
    published(hub, model_path)
    hub.commit(NAME, {"evil.pkl": b"x", "README.md": b"# card"})
    model = snm.from_pretrained(NAME)
    assert {file.name for file in model.path.iterdir()} == {MANIFEST, *model.manifest["files"]}
    assert not any(request.endswith(("evil.pkl", "README.md")) for request in hub.requests)


def test_it_is_downloaded_once_and_opened_without_a_connection(
    hub: Hub, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    published(hub, model_path)
    first = snm.from_pretrained(NAME)
    hub.requests.clear()
    assert snm.from_pretrained(NAME).path == first.path
    assert hub.requests == [f"HEAD /{NAME}/resolve/main/{MANIFEST}"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert snm.from_pretrained(NAME).path == first.path
    with pytest.raises(ModelNotFound, match="not in the cache, and the Hub cannot be reached"):
        snm.from_pretrained("me/second")


def test_revisions(hub: Hub, model_path: Path, corpus_file: Path, tmp_path: Path) -> None:
    published(hub, model_path)
    old = hub.id_of(NAME, 1)
    newer = snm.train(corpus_file, tmp_path / "kn", snm.Settings(model="kn", order=2, threads=1))
    snm.push_to_hub(newer, NAME)
    assert snm.from_pretrained(NAME).manifest["kind"] == "backoff"
    assert snm.from_pretrained(NAME, revision=old).manifest["kind"] == "snm"
    with pytest.raises(ModelNotFound, match="has no such revision"):
        snm.from_pretrained(NAME, revision="v9")


@pytest.mark.parametrize(
    "name", ["../../escaped", "/etc/passwd", "a/../../b", ".hidden", "a\\b", "C:x", "a//b", "a/", "", "a b", "é", "x\n"]
)
def test_names_outside_the_folder_are_refused(hub: Hub, model_path: Path, tmp_path: Path, name: str) -> None:
    published(hub, model_path)
    changed(hub, files={name: {"bytes": 1, "sha256": ""}})
    with pytest.raises(FormatError, match="it lists the file"):
        snm.from_pretrained(NAME)
    assert hub.requests == [f"HEAD /{NAME}/resolve/main/{MANIFEST}", f"GET /{NAME}/resolve/main/{MANIFEST}"]


@pytest.mark.parametrize(
    "manifest", [b"", b"[]", b"{", b'{"files": 3}', b'{"files": {"a": 1}}', b"[" * 100_000, b" " * (9 << 20)]
)
def test_damaged_manifests(hub: Hub, manifest: bytes) -> None:
    hub.commit(NAME, {MANIFEST: manifest})
    with pytest.raises(FormatError, match="is damaged"):
        snm.from_pretrained(NAME)


def test_files_with_other_bytes_or_sizes(hub: Hub, model_path: Path, tmp_path: Path) -> None:
    files = published(hub, model_path)
    hub.commit(NAME, {"data.npy": files["data.npy"][::-1]})
    with pytest.raises(FormatError, match=f"{NAME} of the Hub: data.npy: its checksum differs .* try again"):
        snm.from_pretrained(NAME)
    hub.commit(NAME, {"data.npy": files["data.npy"][:-1]})
    with pytest.raises(FormatError, match=r"data.npy has \d+ bytes; expected"):
        snm.from_pretrained(NAME)
    assert [path for path in tmp_path.glob("cache/*/snm/*") if path.is_dir()] == []
    hub.commit(NAME, files)
    assert snm.from_pretrained(NAME).score(SENTENCE) < 0


def test_what_is_no_model(hub: Hub, model_path: Path) -> None:
    hub.commit(NAME, {"config.json": b"{}"})
    with pytest.raises(FormatError, match="is no whole model of snm: it lacks a file"):
        snm.from_pretrained(NAME)
    published(hub, model_path)
    del hub.files(NAME)["data.npy"]
    with pytest.raises(FormatError, match="is no whole model of snm: it lacks a file"):
        snm.from_pretrained(NAME)
    for name in ("my.model", "a/b/c", "../x", "owner/", "owner/na me", "hf://owner/name"):
        with pytest.raises(ModelNotFound, match="no such model on disk, and no name of one on the Hub"):
            snm.from_pretrained(name)


def test_private_models_and_tokens(hub: Hub, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snm.push_to_hub(model_path, NAME, private=True)
    assert hub.private == {NAME}
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ModelNotFound, match="no such model on the Hub, or a private one"):
        snm.from_pretrained(NAME)
    with pytest.raises(InputError, match=r"cannot upload to me/first: .*401") as raised:
        snm.push_to_hub(model_path, NAME, token="hf_wrong")
    assert "hf_wrong" not in str(raised.value)
    assert snm.from_pretrained(NAME, token=TOKEN).score(SENTENCE) < 0


def test_a_model_that_is_damaged_is_not_pushed(hub: Hub, model_path: Path, tmp_path: Path) -> None:
    shutil.copytree(model_path, tmp_path / "m")
    data = (tmp_path / "m" / "values.npy").read_bytes()
    (tmp_path / "m" / "values.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match="its checksum differs"):
        snm.push_to_hub(tmp_path / "m", "me/second")
    assert hub.requests == []


@pytest.mark.parametrize("name", ["first", "me/", "a/b/c", "me/my model", 3])
def test_names_of_repositories(hub: Hub, model_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="is no name of a model on the Hub; expected owner/name"):
        snm.push_to_hub(model_path, name)


def test_arpa_files(hub: Hub, corpus_file: Path, tmp_path: Path) -> None:
    model = snm.train(corpus_file, tmp_path / "kn", snm.Settings(model="kn", order=2, threads=1))
    snm.export_arpa(model, tmp_path / "a.arpa")
    with pytest.raises(SettingsError, match="is an ARPA file; snm import makes a model"):
        snm.push_to_hub(tmp_path / "a.arpa", NAME)
    assert snm.from_pretrained(tmp_path / "a.arpa").score(SENTENCE) == pytest.approx(model.score(SENTENCE), abs=1e-4)


def test_folders_on_disk_come_first(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, and no package, is needed for them."""
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "first").symlink_to(model_path)
    monkeypatch.chdir(tmp_path)
    assert snm.from_pretrained(NAME).score(SENTENCE) < 0
    with pytest.raises(SettingsError, match="is on disk and has no revisions"):
        snm.from_pretrained(model_path, revision="main")


def test_the_commands(hub: Hub, corpus_file: Path, model_path: Path, tmp_path: Path) -> None:
    card = ok("push", model_path, NAME, "--text", corpus_file, "--license", "cc0-1.0", "--language", "en", "--dry-run")
    assert hub.requests == []
    ok("push", model_path, NAME, "--text", corpus_file, "--license", "cc0-1.0", "--language", "en")
    assert hub.files(NAME)["README.md"].decode() == card
    ok("pull", NAME, "-o", tmp_path / "pulled")
    check_files(tmp_path / "pulled")
    assert snm.load(tmp_path / "pulled") == snm.load(model_path)
    assert (tmp_path / "pulled" / MANIFEST).read_bytes() == (model_path / MANIFEST).read_bytes()
    assert "exists already" in fails("pull", NAME, "-o", tmp_path / "pulled")
    ok("pull", NAME, "-o", tmp_path / "pulled", "--force", "--revision", hub.id_of(NAME, 1))
    (tmp_path / "card.md").write_text("# my card, é\n", encoding="utf-8")
    ok("push", model_path, NAME, "--card", tmp_path / "card.md")
    assert hub.files(NAME)["README.md"].decode() == "# my card, é\n"
    (tmp_path / "card.md").write_bytes(b"\xff")
    assert "not UTF-8" in fails("push", model_path, NAME, "--card", tmp_path / "card.md")
    assert "owner/name" in fails("push", model_path, "first", "--dry-run")
    assert "no such model on the Hub" in fails("pull", "me/none", "-o", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_card_is_read_by_the_hub(model_path: Path) -> None:
    """Its head is YAML, and the Hub's package finds the figures in it."""
    hub = pytest.importorskip("huggingface_hub", reason="needs the package huggingface_hub")
    model, name = snm.load(model_path), 'a "text": of\nmine | \U0001f600 #1'
    report = model.perplexity([SENTENCE])
    figures: dict[str, float | snm.PerplexityReport] = {name: report, "another": 7}
    text = model_card(model, NAME, perplexities=figures, license="MIT, or ask me", languages=["en", "zh-Hant"])
    card = hub.ModelCard(text).data
    assert (card.library_name, card.license, card.license_name) == ("snm", "other", "MIT, or ask me")
    assert card.language == ["en", "zh-Hant"]
    assert [(r.dataset_name, r.metric_type) for r in card.eval_results] == [
        (" ".join(name.split()), "perplexity"), ("another", "perplexity"),
    ]  # fmt: skip
    assert card.eval_results[1].metric_value == 7
    assert card.eval_results[0].metric_value == pytest.approx(report.ppl, abs=1e-3)
    assert "of mine \\| \U0001f600 #1 |" in text
    assert 'snm.from_pretrained("me/first")' in text
    assert f"{model.manifest['links']:,} feature-target pairs" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"languages": ["English text"]}, "expected a code such as en"),
        ({"license": " "}, "expected that of the training text"),
        ({"perplexities": {"x": "low"}}, "the perplexity of x is 'low'; expected a number"),
    ],
)
def test_mistakes_in_a_card(model_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        model_card(snm.load(model_path), NAME, **options)  # type: ignore[arg-type]


def test_every_kind_of_model_has_a_card() -> None:
    from snm.integrations.model_card import KINDS
    from snm.loading import _KINDS

    assert set(KINDS) == set(_KINDS)
