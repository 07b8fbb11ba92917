"""Models on the Hugging Face Hub.

    model = snm.from_pretrained("owner/name")  # downloaded once, then opened from the cache
    snm.push_to_hub(model, "owner/name", perplexities={"my test text": 123.4}, license="cc-by-sa-4.0")

A repository holds the files that the model's manifest lists, the manifest, and a model card, README.md.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from snm import parallel, storage
from snm.arguments import file_path, flag, functions, shown
from snm.errors import FormatError, InputError, MissingExtra, ModelNotFound, SettingsError, SnmError
from snm.integrations.model_card import model_card
from snm.loading import is_arpa, load
from snm.model import LanguageModel, PerplexityReport
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.remote import listed_files
from snm.storage import MANIFEST, MAX_MANIFEST
from snm.version import __version__

REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
CARD = "README.md"
VERIFIED = "snm"
"""In the cache, the folder beside a repository's snapshots whose models are complete and have the right checksums."""
COMPUTED = ("files", "checksum")  # entries of a manifest that are written anew
THREADS = 8  # files downloaded at a time
LONGEST = 300  # characters of another package's message


def from_pretrained(
    name: str | Path, *, revision: str | None = None, token: str | bool | None = None,
    cache_dir: str | Path | None = None, progress: Progress = silent,
) -> LanguageModel:  # fmt: skip
    """Open a model of the Hub, `owner/name`, or one on disk, if there is one of that name.

    It is downloaded into the cache of huggingface_hub, or `cache_dir`, the first time; its checksums are verified then.
    Without a connection, what is in the cache is opened. `revision`: a branch, a tag or a commit, by default `main`.
    `token`: by default, that of `hf auth login` or of the environment (HF_TOKEN).
    """
    functions(progress=progress)
    if os.path.exists(file_path("name", name)):
        if revision is not None:
            raise SettingsError(f"{name} is on disk and has no revisions; leave out the revision, or use another name")
        return load(name, progress=progress)
    if not REPOSITORY.fullmatch(str(name)):
        raise ModelNotFound(f"{name}: no such model on disk, and no name of one on the Hub: owner/name")
    return load(download(str(name), revision=revision, token=token, cache_dir=cache_dir, progress=progress))


def pull(
    name: str, output: str | Path, *, revision: str | None = None, token: str | bool | None = None,
    cache_dir: str | Path | None = None, force: bool = False, progress: Progress = silent, notify: Notify = ignore,
) -> LanguageModel:  # fmt: skip
    """Write a model of the Hub to a folder, which shares its files with the cache where the disk has hard links."""
    with storage.ModelWriter(output, force, notify) as writer:
        folder = download(name, revision=revision, token=token, cache_dir=cache_dir, progress=progress)
        manifest = load(folder).manifest  # a model that cannot be opened is not written
        storage.link_files(folder, writer.folder, [MANIFEST])
        writer.finish({entry: value for entry, value in manifest.items() if entry not in COMPUTED})
    return load(output)


def download(
    name: str, *, revision: str | None = None, token: str | bool | None = None,
    cache_dir: str | Path | None = None, progress: Progress = silent,
) -> Path:  # fmt: skip
    """Download a model of the Hub, unless the cache has it; return its folder in the cache.

    Only the files that its manifest lists are taken, of one commit, and their checksums are verified.
    """
    hub, name = client("a model of the Hub"), repository_name(name)
    options: dict[str, Any] = {
        "token": token,
        "cache_dir": cache_dir,
        "library_name": "snm",
        "library_version": __version__,
    }
    with _explained(name, "download"):
        file = Path(hub.hf_hub_download(name, MANIFEST, revision=revision, tqdm_class=_bar(ignore), **options))
        commit = file.parent.name
        folder = file.parents[2] / VERIFIED / commit
        if folder.is_dir():
            return folder
        files = listed_files(_read(file), name)
        with progress("downloading", sum(files.values())) as advance:
            options = {**options, "revision": commit, "tqdm_class": _bar(advance)}
            parallel.run(lambda listed: hub.hf_hub_download(name, listed, **options), files, THREADS)
    _verify(name, file.parent, [MANIFEST, *files], folder)
    return folder


def push_to_hub(
    model: LanguageModel | str | Path, name: str, *, perplexities: Mapping[str, float | PerplexityReport] | None = None,
    license: str | None = None, languages: Sequence[str] = (), card: str | None = None,
    token: str | bool | None = None, private: bool = False, progress: Progress = silent,
) -> str:  # fmt: skip
    """Upload a model to the repository `owner/name` of the Hub, which is made if there is none; return its address.

    `card`: the text of README.md, by default that of `model_card`, which also says what `perplexities`, `license` and
    `languages` are. `token`: see `from_pretrained`. `private`: whether a new repository is.
    """
    functions(progress=progress)
    hub, name, private = client("uploading a model"), repository_name(name), flag("private", private)
    model = model if isinstance(model, LanguageModel) else load(model)
    if card is None:
        card = model_card(model, name, perplexities=perplexities, license=license, languages=languages)
    folder = Path(os.path.abspath(model.path))
    if is_arpa(folder):
        raise SettingsError(f"{model.path} is an ARPA file; snm import makes a model of it, which can be uploaded")
    storage.check_files(folder)
    add = hub.CommitOperationAdd
    files = [add(file, folder / file) for file in (*storage.read_manifest(folder)["files"], MANIFEST)]
    with _explained(name, "upload to"), _quiet():
        api = hub.HfApi(token=token, library_name="snm", library_version=__version__)
        address = str(api.create_repo(name, private=private, exist_ok=True))
        with progress("uploading", sum(file.upload_info.size for file in files)) as advance:
            for file in files:
                api.preupload_lfs_files(name, [file])
                advance(file.upload_info.size)
        files.append(add(CARD, card.encode()))
        api.create_commit(name, files, commit_message=f"Model uploaded by snm {__version__}")
    return address


def client(purpose: str) -> Any:
    """The package huggingface_hub."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub", purpose) from None
    return huggingface_hub


def repository_name(name: str) -> str:
    """A validated name of a repository."""
    if not isinstance(name, str) or not REPOSITORY.fullmatch(name):
        raise SettingsError(f"{shown(str(name))} is no name of a model on the Hub; expected owner/name")
    return name


def _read(file: Path) -> bytes:
    """The bytes of a manifest, up to one more than it may have."""
    with open(file, "rb") as opened:
        return opened.read(MAX_MANIFEST + 1)


def _verify(name: str, snapshot: Path, files: list[str], folder: Path) -> None:
    """Link the files of a snapshot, which are links themselves, into a folder as plain files; verify checksums."""
    folder.parent.mkdir(exist_ok=True)
    with storage.hidden_place(folder, ignore) as place:
        try:
            for file in files:
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                storage.link_file(snapshot / file, place / file)
            storage.check_files(place, threads=THREADS)
            with suppress(OSError):  # another process was faster
                os.rename(place, folder)
        except FormatError as error:
            raise FormatError(
                f"{name} of the Hub: {str(error).replace(f'{place}{os.sep}', '')}; if the Hub's is whole, delete "
                f"{folder.parents[1]} and try again"
            ) from error
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _explained(name: str, what: str) -> Iterator[None]:
    """A context in which errors of huggingface_hub become ours."""
    from huggingface_hub import errors

    try:
        yield
    except SnmError:
        raise
    except errors.GatedRepoError as error:
        raise ModelNotFound(f"{name} is gated; ask for access on its page, then log in with: hf auth login") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"{name}: no such model on the Hub, or a private one; check the name, and log in with: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFound(f"{name} has no such revision; expected a branch, a tag or a commit of it") from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelNotFound(f"{name} is not in the cache, and the Hub cannot be reached; try again later") from error
    except errors.EntryNotFoundError as error:
        raise FormatError(
            f"{name} is no whole model of snm: it lacks a file ({_line(error)}); expected one that snm push wrote"
        ) from error
    except Exception as error:  # those of its HTTP library too, which has changed
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        raise InputError(f"cannot {what} {name}: {_line(error)}; check the connection and your access") from error


def _line(error: BaseException) -> str:
    """What an error of another package says, and its cause, on one line."""
    says = " ".join(str(error).split())[:LONGEST].rstrip(".") or type(error).__name__
    cause = "" if error.__cause__ is None else _line(error.__cause__)
    return says if cause in says else f"{says} ({cause})"


def _bar(advance: Advance) -> type:
    """A class in the place of tqdm, which shows nothing and tells `advance`."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            advance(int(n or 0))

    return Bar


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without the bars of huggingface_hub."""
    from huggingface_hub import utils

    silent_before = utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if not silent_before:
            utils.enable_progress_bars()
