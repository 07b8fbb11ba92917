"""Options, parameter types and helpers that several commands share; help with options in groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snm.arguments import MAX_THREADS

if TYPE_CHECKING:
    from snm.model import LanguageModel


Command = Callable[..., Any]


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of bytes such as 500M or 4G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).upper().removesuffix("B")
        number, unit = text[:-1], text[-1:]
        if str(value).isdecimal():
            return int(value)
        try:
            return int(float(number) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit])
        except (KeyError, ValueError, OverflowError):
            self.fail(f"{value!r} is not a size; expected a number with K, M, G or T, such as 4G", param, ctx)


class Number(click.IntRange):
    """A whole number, shown as N."""

    name = "N"


threads_option = click.option("--threads", type=Number(1, MAX_THREADS), help="Threads.  [default: all cores]")


def chosen_threads(threads: int | None) -> int:
    from snm.system import default_threads

    return threads or default_threads()


def import_modules(ctx: click.Context, param: click.Parameter, modules: tuple[str, ...]) -> None:
    """Import modules by name, or Python files by path."""
    for module in modules:
        path = Path(module)
        if path.suffix == ".py":
            sys.path.append(str(path.parent))
            module = path.stem
        else:
            sys.path.append("")  # last, so that a file here never takes the place of an installed package
        try:
            import_module(module)
        except Exception as error:
            raise click.BadParameter(f"cannot import {module}: {type(error).__name__}: {error}") from error


class GroupedOption(click.Option):
    """An option that is listed under a heading of the help."""

    def __init__(self, *arguments: Any, group: str | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help lists ungrouped options first, then each group under its heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", None) or "Options", []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)


ON_ERROR: dict[str, Any] = {
    "type": click.Choice(["fail", "replace", "skip-line"]),
    "default": "fail",
    "show_default": True,
    "help": "What to do with a line that is not UTF-8 or has a NUL byte: end with an error, replace the bytes by "
    "U+FFFD, or leave out the line.",
}
unk_option = click.option(
    "--unk", is_flag=True,
    help="Count words outside the vocabulary as <UNK>.  [default: as <UNK> times the probability of their spelling]",
)  # fmt: skip
on_error_option = click.option("--on-error", **ON_ERROR)
TOKENIZER: dict[str, Any] = {
    "metavar": "NAME|FILE",
    "help": "What divides text into words: characters, bytes, or the file of a SentencePiece model or of a tokenizer "
    "of Hugging Face (docs/tokenizers.md).  [default: whitespace]",
}
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON; progress and messages of long work are lines of JSON on standard error.",
)
import_option = click.option(
    "--import", "modules", multiple=True, metavar="MODULE", is_eager=True, expose_value=False, callback=import_modules,
    help="Import a Python module or file that registers feature families.",
)  # fmt: skip
model_argument = click.argument("path", metavar="MODEL")


def load_model(path: str, use: str | None = None) -> LanguageModel:
    """Open a model. For `use`, "score" or "next", its kernels are compiled with a bar of their own."""
    from snm.cli.bars import Bars
    from snm.cli.warmup import compiling
    from snm.loading import load

    model = load(path, progress=Bars())
    if use is not None:
        with compiling(use):
            model.score("a") if use == "score" else model.next_words(k=1)
    return model


def spells(model: LanguageModel, unk: bool) -> bool:
    """Whether to spell words outside the vocabulary: unless --unk is given, or the model cannot."""
    return model.spelling is not None and not unk


def report_unspelled(model: LanguageModel, unk: bool) -> None:
    """Say so where a model cannot spell."""
    from snm.cli.terminal import notify

    if model.spelling is None and not model.vocabulary.closed and not unk:
        notify()(f"{model.path} has no spelling model: words outside the vocabulary count as <UNK>")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))
