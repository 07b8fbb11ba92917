"""The commands reproduce and demo."""

from __future__ import annotations

import json

import click

from snm.arguments import file_path
from snm.cli.bars import Bars
from snm.cli.options import Number, Size, chosen_threads, json_option, print_json, threads_option
from snm.cli.terminal import notify


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.option("--corpus", required=True,
              help="Folder with train.txt, valid.txt and test.txt, plain or compressed; or the One Billion Word "
                   "Benchmark's folder as it is released.")  # fmt: skip
@click.option(
    "--shard", type=Number(0), default=0, show_default=True, help="The benchmark's held-out shard to test on."
)
@click.option("-o", "--output", required=True, help="Folder for the results; a stopped run resumes there.")
@click.option("--vocab", help="File with the vocabulary of all models, one word a line.")
@click.option("--prune", type=Number(1), default=1, show_default=True,
              help="Leave out SNM's features seen less often, except n-grams of up to five words.")  # fmt: skip
@click.option("--events", type=Number(1), help="Train SNM on about this many events.  [default: all]")
@click.option("--slots", type=Number(1), help="Slots of SNM's table of metafeature weights.  [default: by the links]")
@click.option("--take", multiple=True, metavar="FOLDER",
              help="Take models that are missing from the results of another run, such as one on a GPU.")  # fmt: skip
@click.option("--only", multiple=True, metavar="MODEL",
              help="Train only this model and make no table; use its results elsewhere with --take.")  # fmt: skip
@click.option("--keep-models", is_flag=True, help="Keep the models too, not only their probabilities of the text.")
@click.option("--memory", type=Size(), default="4G", show_default=True, help="Memory for training, as in snm train.")
@threads_option
@json_option
def reproduce(
    tables: tuple[str, ...],
    corpus: str,
    shard: int,
    output: str,
    vocab: str | None,
    prune: int,
    events: int | None,
    slots: int | None,
    take: tuple[str, ...],
    only: tuple[str, ...],
    keep_models: bool,
    memory: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """The paper's tables on a corpus: table1, table2, table3, ablations.

    Models that are missing are trained; mixture weights are found on the valid text, perplexities are of the test text.
    Each table is printed and written to the folder as Markdown, JSON and, where matplotlib is installed, a plot; table3
    also as a plot of perplexity against words scored a second on one core.

    SNMs are trained as by snm train --paper. --prune, --events and --slots are for texts that would not fit; the
    caption of a table lists every departure from the paper.
    """
    from snm.errors import MissingExtra
    from snm.reproduction.plots import plot, plot_frontier
    from snm.reproduction.tables import Limits, markdown
    from snm.reproduction.workspace import Workspace
    from snm.settings import ALL_EVENTS

    folder, texts, say = file_path("output", output), file_path("corpus", corpus), notify()
    limits = Limits(prune, events or ALL_EVENTS, slots, None if vocab is None else file_path("vocab", vocab))
    work = Workspace(folder, texts, chosen_threads(threads), memory, keep_models, shard, limits, Bars(), say)
    for other in take:
        work.take(file_path("take", other))
    if only:
        work.train_only(only, tables)
        return
    for name in tables:
        rows = work.table(name)
        where, caption = f"{work.corpus.name}{limits}", work.caption(name)
        text = markdown(name, where, rows, caption)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        (folder / f"{name}.json").write_text(
            json.dumps({"table": name, "corpus": where, "caption": caption, "rows": rows}, indent=1), encoding="utf-8"
        )
        print_json({"table": name, "rows": rows}) if as_json else click.echo(text)
        try:
            plot(name, work.corpus.name, rows, folder / f"{name}.png")
            if name == "table3":
                plot_frontier(work.corpus.name, rows, folder / f"{name}-frontier.png")
        except MissingExtra as error:
            say(f"no plot: {error}")


@click.command()
@click.option("-o", "--output", help="Keep the models in this folder.")
@threads_option
def demo(output: str | None, threads: int | None) -> None:
    """Train on the English that Python carries with it, and show what the models can do."""
    from snm.demo import run

    run(None if output is None else file_path("output", output), chosen_threads(threads), Bars(), click.echo)
