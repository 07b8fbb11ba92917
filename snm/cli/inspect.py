"""Commands that inspect a model: info, verify."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    Number,
    import_option,
    json_option,
    load_model,
    model_argument,
    on_error_option,
    print_json,
)
from snm.cli.plots import Plotted, plot_option, show
from snm.cli.terminal import notify


@click.command(cls=Plotted)
@model_argument
@plot_option
@import_option
@json_option
def info(path: str, plot: str | None, as_json: bool) -> None:
    """Describe MODEL: features, size, training.

    --plot draws rows, links and bytes by feature type, and learning curves.
    """
    from snm import manifest
    from snm.describing import describe

    model = load_model(path) if plot is not None or not os.path.isdir(path) else None
    m = manifest.read(Path(path)) if model is None else model.manifest
    if as_json:
        print_json(m)
    for name, value in () if as_json else describe(m, Path(path)):
        click.echo(f"{name:<13} {value}")
    if plot is not None and model is not None:
        from snm.reporting.plots import of_model

        show(of_model(model), plot, as_json)


@click.command()
@model_argument
@click.argument("text", nargs=-1)
@click.option("--contexts", type=Number(1), default=1000, show_default=True, help="Contexts to check.")
@on_error_option
@import_option
@json_option
def verify(path: str, text: tuple[str, ...], contexts: int, on_error: str, as_json: bool) -> None:
    """Check MODEL: checksums, rows and row sums, and that probabilities sum to one.

    P(w | h) is summed over all words w for contexts h of TEXT or, without TEXT, of sentences sampled from the model.
    """
    from snm.evaluation import verify as check

    report = check(
        path, text, contexts=contexts, on_error=on_error, progress=Bars(as_json), notify=notify(as_json=as_json)
    )
    if as_json:
        print_json(asdict(report))
        return
    click.echo("checksums, rows and links are correct")
    click.echo(
        f"in {report.contexts:,} contexts ({report.at_start} sentence starts, {report.with_unknown} with <UNK>), "
        f"the sum of all probabilities differs from 1 by at most {report.worst:.1e}"
    )
