"""The command filter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    Command,
    GroupedCommand,
    GroupedOption,
    chosen_threads,
    import_option,
    json_option,
    load_model,
    model_argument,
    on_error_option,
    print_json,
    report_unspelled,
    spells,
    threads_option,
    unk_option,
)
from snm.cli.terminal import notify

if TYPE_CHECKING:
    from snm.filtering import FilterReport


class Share(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A share such as 30% or 0.3."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a share; expected one such as 30% or 0.3", param, ctx)


def _option(*names: str, group: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(*names, cls=GroupedOption, group=group, **more)


@click.command(name="filter", cls=GroupedCommand)
@model_argument
@click.argument("text")
@click.option("-o", "--output", metavar="FILE", help="Where to write what is kept; - for standard output. Compressed "
              "if it ends in .gz or .zst. Without it, text is only scored.")  # fmt: skip
@_option("--max-ppl", type=float, metavar="X", group="What is kept", help="Records of at most this perplexity.")
@_option("--min-ppl", type=float, metavar="X", group="What is kept", help="Records of at least this perplexity.")
@_option("--keep", type=Share(), metavar="SHARE", group="What is kept",
         help="This share of the records, those with the lowest scores: 30% or 0.3.")  # fmt: skip
@_option("--against", metavar="MODEL", group="What is kept",
         help="Another model, of text that is not wanted, or of text in general. The score is then the ratio of the "
         "perplexity under the first model to that under this one.")  # fmt: skip
@_option("--max-ratio", type=float, metavar="X", group="What is kept", help="With --against: records of at most this "
         "ratio.")  # fmt: skip
@_option("--format", "form", type=click.Choice(["text", "jsonl", "parquet"]), group="Records",
         help="[default: what the name of TEXT says, else text]")  # fmt: skip
@_option("--field", default="text", show_default=True, group="Records", help="Field of JSON lines or Parquet that has "
         "the text.")  # fmt: skip
@click.option("--histogram", metavar="PNG", help="Draw a histogram of the scores to this file.")
@click.option("--resume", is_flag=True, help="Keep scores in the folder FILE.work while the run lasts. After the run "
              "was killed, the same command goes on from there.")  # fmt: skip
@unk_option
@threads_option
@on_error_option
@import_option
@json_option
def filter_command(
    path: str, text: str, against: str | None, unk: bool, threads: int | None, output: str | None, form: str | None,
    as_json: bool, **how: Any,
) -> None:  # fmt: skip
    """Keep those records of TEXT (or of standard input, -) that are probable under MODEL.

    A record is a line, a line of JSON (.jsonl), or a row of a Parquet file (.parquet); TEXT may be compressed. Its
    score is its perplexity: all words and sentence ends, each line of the record a sentence. Words outside the
    vocabulary are spelled, so gibberish has a high perplexity; with --unk it has a low one. Records are written as they
    are and in their order; those without words are left out. --keep is exact: it reads the text twice, standard input
    from a temporary file.
    """
    from snm.filtering import filter_text

    model = load_model(path, "score")
    other = None if against is None else load_model(against, "score")
    both = [one for one in (model, other) if one is not None]
    for one in both:
        report_unspelled(one, unk)
    spelled = all(spells(one, unk) or one.vocabulary.closed for one in both)
    report = filter_text(
        model, text, output, against=other, spelled=spelled, threads=chosen_threads(threads),
        format=form, progress=Bars(as_json), notify=notify(as_json=as_json), **how,
    )  # fmt: skip
    print_json(asdict(report)) if as_json else _print_report(report, output == "-")


def _print_report(report: FilterReport, to_error: bool) -> None:
    share = report.kept / max(1, report.records)
    rows = [
        ("records", f"{report.records:,}  ({report.blank:,} without words)"),
        ("kept", f"{report.kept:,}  ({share:.2%})"),
        ("largest score kept", "none" if report.limit is None else f"{report.limit:.4g}"),
        ("scores", ", ".join(f"{share} below {value:.4g}" for share, value in report.quantiles.items()) or "none"),
        ("tokens", f"{report.tokens:,}  ({report.oov:,} out of vocabulary)"),
        ("seconds", f"{report.seconds:.2f}  ({report.tokens / max(report.seconds, 1e-9):,.0f} tokens a second)"),
    ]
    for name, value in rows:
        click.echo(f"{name:<18} {value}", err=to_error)
