"""The work folder of a training: what its tasks read and write, and who removes it.

The folder is a path that all machines see, or a URL. It has a folder for each text that is counted:

| file | contents |
| --- | --- |
| `job.json` | what is counted, and how: see `Job` |
| `tokens`, `vocabulary`, `classes` | the encoded text (`<u4`), its words, one a line, and their classes (`<u2`) |
| `size-00001-of-00004` | links of each chunk of the text in each bucket, of a part of the text (`<u4`) |
| `sizes` | their sum. Chunks: see `snm.counts.walks.Links` |
| `count-00001-of-00004.codes`, `.chunks` | the counts of a range of buckets, as in docs/format.md, section 12 |
| `count-00001-of-00004.events` | the counts of the features of events, coded, in these buckets |
| `shards.json` | the number of tasks that count |
| `build.json` | how the matrix is built: see `BuildPlan` |
| `chunks`, `weights`, `values` | the chunks of all counts; the weights of the adjustment; the values of the codes |
| `build-00001-of-00004.sizes`, `.pages`, `.long` | sizes of pages (`<u4`), pages and long rows of a range of buckets |
| `size-….json`, `count-….json`, `build-….json` | marks: the task is complete. The sizes of its files, and more |

A file gets its name when it is complete, and the mark comes last, so a task can be run again at any time, and several
times at once: each makes the same bytes.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from snm.counts.walks import cut, run_length
from snm.errors import FormatError, SettingsError
from snm.features.extraction import Extractor
from snm.features.families import family_named
from snm.features.specification import FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.progress import Notify
from snm.remote import Folder, is_in_use, is_url, used_lock
from snm.storage import hidden_place
from snm.text.encoding import Text
from snm.text.vocabulary import Vocabulary
from snm.version import __version__

JOB, SHARDS, PLAN, PHASE, OWNER = "job.json", "shards.json", "build.json", "phase.json", "owner.json"
TOKENS, VOCABULARY, CLASSES, SIZES = "tokens", "vocabulary", "classes", "sizes"
CHUNKS, WEIGHTS, VALUES = "chunks", "weights", "values"
PAGE_FILES = "sizes", "pages", "long"


@dataclass(frozen=True)
class Job:
    """What is counted, and how."""

    features: str
    layout: dict[str, int]
    words: int
    closed: bool
    document: bool
    sentences: int
    documents: int | None
    prune: int
    run_tokens: int | None  # see `snm.counts.walks.Walk`
    chunks: int  # of a run
    annotated: bool  # whether the counts of events are wanted
    memory: int  # bytes of a task
    threads: int  # of a task
    modules: list[tuple[str, str]] = field(default_factory=list)  # that register families, and their folders
    version: str = __version__

    @staticmethod
    def write(
        folder: Folder, text: Text, extractor: Extractor, prune: int, run_tokens: int | None, chunks: int,
        annotated: bool, memory: int, threads: int,
    ) -> None:  # fmt: skip
        """Write a folder for the tasks that count a text."""
        vocabulary, layout = extractor.vocabulary, extractor.layout
        bits = {name: getattr(layout, name) for name in ("target_bits", "type_bits", "bucket_bits")}
        job = Job(
            extractor.spec.text, bits, len(vocabulary), vocabulary.closed, vocabulary.document, text.sentences,
            text.documents, prune, run_tokens, chunks, annotated, memory, threads, _modules(extractor),
        )  # fmt: skip
        folder.make()
        folder.write(TOKENS, *(np.ascontiguousarray(piece, "<u4") for piece in text.pieces()))
        folder.write(VOCABULARY, vocabulary.lines)
        if extractor.classes is not None:
            folder.write(CLASSES, extractor.classes.astype("<u2"))
        folder.write(JOB, json.dumps(asdict(job), indent=1).encode())


@dataclass(frozen=True)
class BuildPlan:
    """How the matrix is built from the counts."""

    loss: str
    metafeatures: str
    buckets: dict[str, Any]  # how metafeatures see counts: further arguments of `MetafeatureSet.parse`
    start: float
    bits: int  # of a key that say its page
    code_bytes: int
    rows_per_part: int
    shards: int  # tasks that counted
    edges: list[int]  # of their buckets

    @staticmethod
    def read(folder: Folder) -> BuildPlan:
        return BuildPlan(**json.loads(folder.read(PLAN)))

    def write(self, folder: Folder) -> None:
        folder.write(PLAN, json.dumps(asdict(self), indent=1).encode())


def _modules(extractor: Extractor) -> list[tuple[str, str]]:
    """The modules of the user's feature families, and the folders that they are in."""
    found = []
    for name in extractor.spec.families:
        module = family_named(name).make.__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        if module == "__main__" or file is None:
            raise SettingsError(
                f"the feature family {name!r} is registered by the main program, which other machines cannot import; "
                f"register it in a module of its own (on the command line: --import MODULE)"
            )
        found.append((module, str(Path(file).resolve().parents[module.count(".")])))
    return found


class OpenJob:
    """A folder of a job, opened by a task: the text is mapped, or copied once for each process."""

    def __init__(self, where: str) -> None:
        self.folder = Folder(where)
        try:
            found = json.loads(self.folder.read(JOB))
        except FileNotFoundError as error:
            raise FormatError(
                f"{where} has no {JOB} on {socket.gethostname()}; expected a folder of snm train that all machines "
                f"share: name one with --work"
            ) from error
        if found.get("version") != __version__:
            raise FormatError(
                f"{where} was written by snm {found.get('version')}; this machine has {__version__}: install the same "
                f"version on all machines"
            )
        self.job = job = Job(**found)
        for module, folder in job.modules:
            if folder not in sys.path:
                sys.path.append(folder)
            import_module(module)
        words = self.folder.read(VOCABULARY).split(b"\n", 3)[-1]
        vocabulary = Vocabulary.of_lines(words, job.closed, job.document)
        spec = FeatureSpec(job.features)
        classes = self.folder.map(CLASSES, "<u2") if spec.has_classes else None
        self.extractor = Extractor(spec, KeyLayout(**job.layout), vocabulary, classes)
        self.text = Text(self.folder.map(TOKENS, "<u4"), job.sentences, job.documents)
        length = run_length(len(self.text.tokens), job.run_tokens, self.extractor)
        self.runs = cut(0, len(self.text.tokens), length, job.chunks, self.extractor.block)
        self.buckets = 1 << self.extractor.layout.bucket_bits


def name_of(task: str, shard: int, shards: int) -> str:
    if not 0 <= shard < shards:
        raise SettingsError(f"shard {shard} of {shards}: expected a number from 0 to {shards - 1}")
    return f"{task}-{shard:05}-of-{shards:05}"


def write_mark(folder: Folder, name: str, files: list[str], **more: Any) -> None:
    """Mark a task as complete."""
    sizes = {file: folder.size(file) for file in files}
    folder.write(f"{name}.json", json.dumps({"files": sizes, **more}).encode())


def read_mark(folder: Folder, name: str) -> dict[str, Any] | None:
    """What a complete task has to say; None if it is not complete, or a file is missing or cut short."""
    try:
        mark: dict[str, Any] = json.loads(folder.read(f"{name}.json"))
        complete = all(folder.size(file) == size for file, size in mark["files"].items())
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return mark if complete else None


def finished(folder: Folder, name: str) -> dict[str, Any]:
    """What a task has to say that has ended."""
    mark = read_mark(folder, name)
    if mark is None:
        raise FormatError(
            f"{folder.path(name)} is not complete, though its task has ended; do all machines share the folder? Name "
            f"one with --work"
        )
    return mark


def checked(data: np.ndarray, checksum: int, where: str) -> np.ndarray:
    """The data, if it has this checksum."""
    if zlib.crc32(data.view(np.uint8).data) != checksum:
        raise FormatError(f"{where} is damaged: its checksum differs from its mark's; train again")
    return data


# ---------------------------------------------------------------------------------------------
# the folder of a run


def kept_place(where: str | None, output: Path, engine: str) -> str:
    """The folder of a run that can be resumed: `where` itself for other programs, else NAME.work in it."""
    if engine == "tasks":
        return str(where)
    name = f"{output.name}.work"
    return str(output.with_name(name)) if where is None else f"{where.rstrip('/')}/{name}"


@contextmanager
def named_folder(where: str) -> Iterator[Folder]:
    """The folder `where` itself, which other programs can find. It must be empty; it is removed in the end."""
    folder = Folder(where)
    if folder.names():
        raise SettingsError(f"{where} is not empty; name another folder with --work, or remove what a killed run left")
    try:
        folder.make()
        yield folder
    finally:
        folder.remove()


@contextmanager
def work_folder(where: str | None, output: Path, notify: Notify) -> Iterator[Folder]:
    """A new folder in `where`, a path or a URL, or beside `output`; it is removed in the end.

    What a killed run has left for the same output is removed first.
    """
    if where is not None and is_url(where):
        with _folder_by_url(Folder(where), f".{output.name}.work.", notify) as folder:
            yield folder
        return
    parent = output.parent if where is None else Path(where)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"cannot write to the work folder {parent}: {error.strerror}") from error
    with hidden_place(parent.resolve() / f"{output.name}.work", notify) as place:
        folder = Folder(place)
        try:
            yield folder
        finally:
            folder.remove()


@contextmanager
def _folder_by_url(parent: Folder, prefix: str, notify: Notify) -> Iterator[Folder]:
    """The same by URL, where there are no locks: a file names the machine of the owner, which has a locked file."""
    host, token = socket.gethostname(), secrets.token_hex(4)
    for name in parent.names():
        old = parent.child(name)
        if name.startswith(prefix) and _is_dead(old, name.removeprefix(prefix), host, notify):
            notify(f"removing {old.where}, which a run left behind that was killed")
            old.remove()
    folder = parent.child(f"{prefix}{token}")
    with used_lock(token):
        try:
            folder.make()
            folder.write(OWNER, json.dumps({"host": host}).encode())
            yield folder
        finally:
            folder.remove()


def _is_dead(folder: Folder, token: str, host: str, notify: Notify) -> bool:
    owner: dict[str, Any] = {}
    with suppress(FileNotFoundError, ValueError):
        owner = json.loads(folder.read(OWNER))
    if owner.get("host") == host:
        return not is_in_use(token)
    notify(f"{folder.where} is there, of a run on {owner.get('host', 'an unknown machine')}; remove it if that ended")
    return False
