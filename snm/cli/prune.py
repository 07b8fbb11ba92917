"""The command prune."""

from __future__ import annotations

from typing import Any

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    Number,
    Size,
    chosen_threads,
    import_option,
    json_option,
    load_model,
    model_argument,
    on_error_option,
    print_json,
    threads_option,
)
from snm.cli.plots import Plotted, plot_option, show
from snm.cli.terminal import notify


class Share(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A share such as 1% or 0.01."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a share; expected a number such as 1% or 0.01", param, ctx)


@click.command(cls=Plotted)
@model_argument
@click.option("-o", "--output", required=True, help="Folder of the model to write.")
@click.option("--size", type=Size(), help="Most bytes that the folder may have, such as 200M.")
@click.option("--links", type=Number(1), help="Most links (n-grams of a backoff model) that it may have.")
@click.option("--loss", type=Share(), help="Most that perplexity may rise, such as 1%.")
@click.option("--dev", multiple=True,
              help="Held-out text: an SNM's gate is learned anew on it, and --loss is measured on it.")  # fmt: skip
@on_error_option
@threads_option
@click.option("--force", is_flag=True, help="Replace a model of that name.")
@plot_option
@import_option
@json_option
def prune(
    path: str, output: str, size: int | None, links: int | None, loss: float | None, dev: tuple[str, ...],
    on_error: str, threads: int | None, force: bool, plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write a smaller MODEL, without the links and features that bring least.

    MODEL is an SNM or a backoff model (kn, katz, sbo, an ARPA file). Give one of --size, --links and --loss. An SNM
    needs --dev for its best: text that it was not trained on. Without --dev, the --loss of a backoff model is estimated
    from the model alone. --plot draws what is left, and the sizes that --loss has tried.
    """
    from snm.pruning.models import model_bytes, prune

    if sum(value is not None for value in (size, links, loss)) != 1:
        raise click.UsageError("expected one of --size, --links and --loss")
    say, model = notify(as_json), load_model(path)
    smaller = prune(
        model, output, size=size, links=links, loss=loss, dev=dev, threads=chosen_threads(threads), on_error=on_error,
        force=force, progress=Bars(), notify=say,
    )  # fmt: skip
    found = {"model": output, "bytes": model_bytes(smaller), "links": smaller.manifest["links"]}
    if as_json:
        print_json({**found, "pruning": smaller.manifest.get("pruning")})
    else:
        say(f"wrote {output}: {found['bytes'] / 1e6:,.1f} MB, {found['links']:,} links")
    if plot is not None:
        from snm.reporting.plots import of_pruning

        show(of_pruning(model, smaller), plot, as_json)
