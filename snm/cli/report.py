"""The commands report and compare."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    Number,
    Size,
    chosen_threads,
    import_option,
    json_option,
    load_model,
    on_error_option,
    print_json,
    threads_option,
)
from snm.cli.plots import Plotted, output_columns, plot_option, show
from snm.cli.serve import name_models
from snm.cli.terminal import notify, one_line
from snm.errors import SettingsError

if TYPE_CHECKING:
    from snm.model import LanguageModel
    from snm.reporting.figures import Compared, ModelFigures

sample_option = click.option(
    "--sample", type=Size(), default="16M", show_default=True,
    help="Most bytes of text to score; of a longer text, an even sample.",
)  # fmt: skip
resamples_option = click.option(
    "--resamples", type=Number(1), default=1000, show_default=True, help="Draws of the bootstrap."
)
seed_option = click.option("--seed", type=Number(0), default=1, show_default=True, help="Seed of the draws.")


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL... TEXT")
@click.option("-o", "--output", required=True, help="Page to write; - is standard output.")
@sample_option
@resamples_option
@seed_option
@threads_option
@on_error_option
@import_option
@json_option
def report(
    models: tuple[str, ...], output: str, sample: int, resamples: int, seed: int, threads: int | None, on_error: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Write a page about one or several models on TEXT.

    One page of HTML, without scripts, that needs no other file: perplexity with its interval, which words and sentences
    are hard, which features bring how much, learning curves, sizes, and with several models how they differ from the
    first (docs/reports.md). TEXT is the last argument.
    """
    from snm.reporting.page import page
    from snm.reporting.report import report as make
    from snm.storage import replaced_file

    with replaced_file(output) as stream:  # first: an error before any work
        named, text = _arguments(models, 1)
        made = make(
            named, text, sample=sample, resamples=resamples, seed=seed, threads=chosen_threads(threads),
            on_error=on_error, progress=Bars(as_json), notify=notify(as_json=as_json),
        )  # fmt: skip
        stream.write(page(made))
    if output == "-":
        return
    if as_json:
        print_json(asdict(made))
    else:
        _print_models(made.comparison)
        notify()(f"wrote {output}")


@click.command(cls=Plotted)
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL [NAME=]MODEL... TEXT")
@sample_option
@resamples_option
@seed_option
@threads_option
@on_error_option
@plot_option
@import_option
@json_option
def compare(
    models: tuple[str, ...], sample: int, resamples: int, seed: int, threads: int | None, on_error: str,
    plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare models on TEXT: perplexities, and how far each is from the first.

    Intervals are of 95 %, by the bootstrap over sentences; the p-value is that of the paired bootstrap, which measures
    all models on the same drawn sentences. Models with the same words are compared by perplexity; others with unknown
    words spelled or, if a model cannot spell, on the words that all of them know. TEXT is the last argument.
    """
    from snm.reporting.report import compare as make

    named, text = _arguments(models, 2)
    made = make(
        named, text, sample=sample, resamples=resamples, seed=seed, threads=chosen_threads(threads), on_error=on_error,
        progress=Bars(as_json), notify=notify(as_json=as_json),
    )  # fmt: skip
    if as_json:
        print_json(asdict(made))
    else:
        _print_models(made)
        click.echo(made.basis_text)
    if plot is not None:
        from snm.reporting.charts import of_perplexities, of_ratios

        ratios = of_ratios(made)
        show([of_perplexities(made), *([] if ratios is None else [ratios])], plot, as_json)


def _arguments(given: tuple[str, ...], least: int) -> tuple[dict[str, LanguageModel], str]:
    """The models by their names, opened, and the text."""
    from snm.text.files import find_files

    *paths, text = given
    if len(paths) < least:
        raise click.UsageError(f"expected {'a model' if least == 1 else 'two models or more'}, and then TEXT")
    if (Path(text) / "manifest.json").is_file():
        raise SettingsError(f"{text} is a model; expected TEXT as the last argument")
    named = name_models(tuple(paths))
    find_files(text)  # an error before models are opened
    return {name: load_model(path, "score") for name, path in named.items()}, text


def _print_models(made: Compared) -> None:
    """A table; in a narrow terminal, lines under the name of each model."""
    rows = [_row(model, made.resamples) for model in made.models]
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in header]
    if not sys.stdout.isatty() or sum(widths) + 2 * len(widths) - 2 <= output_columns():
        for row in [dict(zip(header, header, strict=True)), *rows]:
            cells = [row[name].rjust(width) for name, width in zip(header, widths, strict=True)]
            cells[0] = row["model"].ljust(widths[0])
            click.echo("  ".join(cells).rstrip())
    else:
        for row in rows:
            click.echo(row["model"])
            for name in header[1:]:
                if row[name]:
                    click.echo(f"  {name:<14} {row[name]}")
    if made.few:
        click.echo("the text has few sentences: the intervals say little")


def _row(model: ModelFigures, resamples: int) -> dict[str, str]:
    from snm.reporting.page import p_value

    p, found = model.perplexity, model.difference
    row = {
        "model": one_line(model.name), "perplexity": f"{p.ppl:,.2f}",
        "95 % interval": f"{model.interval.low:,.2f} to {model.interval.high:,.2f}",
        "bits a byte": "" if p.bits_per_byte is None else f"{p.bits_per_byte:.4f}", "OOVs": f"{p.oov:,}",
        "change": "", "its interval": "", "p-value": "",
    }  # fmt: skip
    if found is not None:
        low, high = (f"{100 * (value - 1):+.2f}" for value in (found.ratio.low, found.ratio.high))
        row["change"], row["its interval"] = f"{100 * (found.ratio.value - 1):+.2f} %", f"{low} to {high} %"
        row["p-value"] = p_value(found, resamples)
    return row
