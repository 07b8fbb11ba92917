"""The code blocks of a page, run as a reader would run them: all in one folder, with one namespace.

    ```python          is executed
    ```sh              is a list of commands
    ```console         has commands after `$ `, and below each what it prints
    ```text            is not code; with the title "prints" it is what the block before prints

What is printed is compared but for white space: `…` stands for anything, and numbers may differ by a fiftieth. A
comment before a block says what is special about it:

    <!-- needs torch -->             a package, a program or a thing of NEVER; without it the block is skipped
    <!-- prints may differ -->     what is printed depends on more than the page, and is not compared
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import itertools
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from snm.cli.main import main

NEVER = {
    "a Hub account", "a Ray cluster", "a corpus", "a decoder's options", "a network file system", "S3", "Slurm",
    "lm-evaluation-harness", "the checkout", "the network",
}  # fmt: skip
"""What no test has."""
OPTIONAL = {
    "a GPU", "curl", "datasets", "datatrove", "fastapi", "flashlight", "huggingface_hub", "kenlm", "matplotlib",
    "openai", "prometheus_client", "pyarrow", "pyctcdecode", "ray", "sentencepiece", "tokenizers", "torch", "uvicorn",
    "zstandard",
}  # fmt: skip
"""What some machines have."""
LANGUAGES = {"python", "sh", "console", "text"}
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]* -->\n\s*)*)^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?"
_PIECE = re.compile(rf"({_NUMBER})|(\s+)|(…|[^\s\d…]+)")
_SHELL = re.compile(r"[|&;]|\bfor\b|\$[A-Za-z(]|^(?!snm\b|\s*(?:#|$))", re.MULTILINE)


@dataclass
class Block:
    page: str
    line: int
    info: str
    code: str
    comments: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def needs(self) -> list[str]:
        return [need for found in re.findall(r"<!-- needs (.*?) -->", self.comments) for need in found.split(", ")]

    @property
    def may_differ(self) -> bool:
        return "<!-- prints may differ -->" in self.comments


def blocks_of(page: Path, root: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page.relative_to(root).as_posix(), text.count("\n", 0, m.start("info")) + 1, m["info"], m["code"],
            m["comments"],
        )
        for m in _BLOCK.finditer(text)
    ]  # fmt: skip


def missing(need: str) -> bool:
    """Whether what a block needs is not here: a package or a program. What no test has is always missing."""
    if need in NEVER:
        return True
    if need == "a GPU":
        torch = importlib.util.find_spec("torch") and importlib.import_module("torch")
        return not (torch and torch.cuda.is_available())
    return importlib.util.find_spec(need) is None and shutil.which(need) is None


def alike(wanted: str, found: str) -> bool:
    """Whether an output is the one that a page shows."""
    pattern, numbers = "", []
    for number, space, rest in _PIECE.findall(wanted.strip()):
        if number:
            numbers.append(number)
            pattern += f"({_NUMBER})"
        else:
            pattern += r"\s+" if space else ".*?" if rest == "…" else re.escape(rest)
    pattern = pattern.replace(r"\s+.*?", r"\s*.*?").replace(r".*?\s+", r".*?\s*")
    match = re.fullmatch(pattern, found.strip(), re.DOTALL)
    pairs = [] if match is None else [(_value(a), _value(b)) for a, b in zip(numbers, match.groups(), strict=True)]
    return match is not None and all(abs(a - b) <= 0.02 * abs(a) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


@dataclass
class Runner:
    """Runs the blocks of a page in the current folder.

    `supply(name)` makes a model or text that a how-to page uses and never made; a tutorial makes all of its own.
    """

    names: dict[str, Any] = field(default_factory=dict)
    supply: Callable[[str], None] | None = None
    serve: Callable[[list[str]], str] | None = None
    """Starts a server of models; returns its address, which stands for localhost:8000 from then on."""
    address: str = "http://localhost:8000"
    printed: str = ""

    def __post_init__(self) -> None:
        self.names.setdefault("__name__", "__main__")

    def run(self, block: Block) -> None:
        try:
            if block.info == 'text title="prints"':
                wanted = block.code
                assert block.may_differ or alike(wanted, self.printed), _differs(wanted, self.printed)
            elif block.language == "python":
                self._python(block.code, block.place)
            elif block.language == "sh":
                self._shell(block.code)
            elif block.language == "console":
                self._console(block)
        except Exception as error:
            error.add_note(f"in the block of {block.place}")
            raise

    def _python(self, code: str, place: str) -> None:
        tree = ast.parse(code.replace("http://localhost:8000", self.address), place)
        outputs = set(_outputs(tree))
        literals = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        self._prepare([name for name in literals if name not in outputs], outputs)
        with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # examples that leave a file open
            exec(compile(tree, place, "exec"), self.names)
        self.printed = printed.getvalue()

    def _shell(self, code: str) -> None:
        code = re.sub(r"\\\n\s*", " ", code.strip())
        self.printed = self._script(code) if _SHELL.search(code) else "".join(map(self._snm, _lines(code)))

    def _console(self, block: Block) -> None:
        for piece in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
            command, wanted = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", piece, re.DOTALL).groups()  # type: ignore[union-attr]
            self._shell(command)
            shown = wanted.strip() and not block.may_differ and not command.startswith("snm serve")
            assert not shown or alike(wanted, self.printed), _differs(wanted, self.printed)

    def _snm(self, line: str) -> str:
        """Run a command; return its output."""
        words, taken = shlex.split(line, comments=True), None
        assert words[0] == "snm", f"{words[0]!r} is not a command of snm"
        words = [name for word in words[1:] for name in _globbed(word)]
        if "<" in words:
            words, taken = words[: words.index("<")], words[words.index("<") + 1]
        outputs = {after for word, after in itertools.pairwise(words) if word in ("-o", "--output")}
        self._prepare([*(w for w in words if w not in outputs), *([taken] if taken else [])], outputs)
        if words[0] == "serve":
            assert self.serve is not None, "only how-to pages have a server"
            self.address = self.serve(words[1:])
            return ""
        text = Path(taken).read_text() if taken else None
        result = CliRunner().invoke(main, words, input=text)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        return result.output

    def _script(self, code: str) -> str:
        """Run what needs a shell."""
        self._prepare(re.findall(r"[\w./-]+", code), set())
        python = shlex.quote(sys.executable)
        head = f'set -e\nsnm() {{ {python} -m snm "$@"; }}\npython() {{ {python} "$@"; }}\n'
        code = code.replace("localhost:8000", self.address.removeprefix("http://"))
        done = subprocess.run(
            ["bash", "-c", head + code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}"
        return done.stdout

    def _prepare(self, inputs: list[str], outputs: set[str]) -> None:
        """On a how-to page: supply what is read, and remove what is written anew."""
        if self.supply is None:
            return
        for name in outputs:
            path = Path(name)
            (shutil.rmtree if path.is_dir() and not path.is_symlink() else Path.unlink)(path) if path.exists() else None
        for name in inputs:
            name = name.rpartition("=")[2]
            if re.fullmatch(r"[\w/-]+(\.\w+)+", name) and not Path(name).exists():
                self.supply(name)


def _lines(code: str) -> list[str]:
    return [line for line in code.split("\n") if line.strip() and not line.lstrip().startswith("#")]


def _globbed(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word and " " not in word else [word]


OUTPUTS = {
    "train": 1, "prune": 1, "import_arpa": 1, "export_arpa": 1, "adapt": 1, "write_vocabulary": 1, "count_text": 1,
    "merge_counts": 1, "mix": 2, "mix_gated": 2, "filter_text": 2, "save": 0,
}  # fmt: skip
"""Where calls have the name of what they write."""


def _outputs(tree: ast.AST) -> list[str]:
    """What the calls of a block write, by their literals."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    found = [(c.args[OUTPUTS[c.func.attr]]) for c in calls if len(c.args) > OUTPUTS.get(c.func.attr, 99)]  # type: ignore[attr-defined]
    return [node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _differs(wanted: str, found: str) -> str:
    return f"the page has\n{wanted}\nbut this was printed\n{found}"
