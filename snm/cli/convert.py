"""Commands that make models from models: export, import, mix."""

from __future__ import annotations

from dataclasses import asdict

import click

from snm.arguments import file_path
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
from snm.cli.terminal import notify


@click.command()
@model_argument
@click.argument("file", default="-")
@click.option("--text", multiple=True,
              help="Text whose n-grams are written, with the probabilities of the model.")  # fmt: skip
@click.option(
    "--dev",
    multiple=True,
    help="Held-out text, which n-grams of SNMs are adjusted to.  [default: text that the model generates]",
)
@click.option("--order", type=Number(1, 32), help="Longest n-grams.  [default: those of the model; 5 if it has none]")
@click.option("--size", type=Size(), help="Most bytes of the file, such as 200M: n-grams are pruned by entropy.")
@click.option("--nemo", metavar="LABELS", help="Name tokens as NeMo does: a file of its tokens, one a line, "
              "in the order of their ids.")  # fmt: skip
@on_error_option
@threads_option
@import_option
def export(
    path: str, file: str, text: tuple[str, ...], dev: tuple[str, ...], order: int | None, size: int | None,
    on_error: str, threads: int | None, nemo: str | None,
) -> None:  # fmt: skip
    """Write MODEL as an ARPA FILE (default: standard output), for programs that read nothing else.

    A backoff model (kn, katz, sbo) is written as it is, an SNM or a mixture as its own n-grams. What an SNM knows from
    other features than n-grams is kept as far as a backoff model can, better with --dev. Models of several sources need
    --dev, by which the sources are weighed. Networks need --text: they are projected on its n-grams.
    """
    from snm.exporting import export_arpa
    from snm.integrations.nemo import read_labels, rename_tokens
    from snm.scratch import scratch_folder

    def write(name: str) -> None:
        export_arpa(
            load_model(path), name, text=text, dev=dev, order=order, size=size, threads=chosen_threads(threads),
            on_error=on_error, progress=Bars(), notify=notify(),
        )  # fmt: skip

    if nemo is None:
        return write(file)
    labels = read_labels(nemo)
    with scratch_folder(notify()) as folder:
        write(f"{folder}/own.arpa")
        rename_tokens(f"{folder}/own.arpa", file, labels)


@click.command(name="import")
@click.argument("file")
@click.option("-o", "--output", required=True, help="Folder of the model to write.")
@click.option("--force", is_flag=True, help="Replace a model of that name.")
def import_arpa(file: str, output: str, force: bool) -> None:
    """Convert an ARPA FILE (plain or compressed) of any toolkit to a model."""
    from snm.baselines.backoff import arpa

    say = notify()
    model = arpa.import_arpa(file, output, force=force, progress=Bars(), notify=say)
    say(f"wrote {output}: {len(model.vocabulary):,} words, {len(model.targets):,} n-grams")


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--dev", multiple=True, required=True, help="Held-out text that the weights are fitted to.")
@click.option("-o", "--output", help="Folder of the mixture to write.")
@click.option(
    "--gated",
    is_flag=True,
    help="Weights that depend on the context, by a gate that sees the rows of an SNM among the models.",
)
@click.option("--test", multiple=True, help="Text to measure the perplexity of the mixture on; without -o.")
@click.option("--test-file", "test_files", multiple=True,
              help="Probabilities of the test text, for each MODEL that is a file of probabilities.")  # fmt: skip
@on_error_option
@threads_option
@click.option("--force", is_flag=True, help="Replace a model of that name.")
@import_option
@json_option
def mix(
    models: tuple[str, ...], dev: tuple[str, ...], output: str | None, gated: bool, test: tuple[str, ...],
    test_files: tuple[str, ...], on_error: str, threads: int | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Mix two or more MODELs linearly, with the weights that are best on held-out text.

    A MODEL is a model's folder, an ARPA file, or a file of another program's probabilities of the held-out text: one
    number (or its log10) for each word and sentence end, in order. The models may have different words: each gives a
    share of its P(<UNK>) to those that it lacks. With --gated the weights differ by context: a gate that is learned on
    held-out text weighs the distributions of the models against the rows of an SNM, which must be one of them.

    With -o the mixture is written as a model. Without -o, its weights and perplexities are printed; files of
    probabilities need this form.
    """
    from snm import mixing

    plain = [model for model in models if mixing.is_probability_file(file_path("a model", model))]
    if gated and output is None:
        raise click.UsageError("--gated needs -o: a gate is part of a model")
    if output is None:
        found = mixing.weigh(
            models, dev, test=test, test_files=test_files, threads=chosen_threads(threads), on_error=on_error,
            progress=Bars(as_json), notify=notify(as_json=as_json),
        )  # fmt: skip
        if as_json:
            print_json({**asdict(found), "weights": found.weights.tolist()})
        return
    if plain or test or test_files:
        what = f"{plain[0]} has the probabilities of one text" if plain else "--test and --test-file exclude -o"
        raise click.UsageError(f"{what}; leave out -o to see weights and perplexities, or write a mixture of models")
    if gated:
        from snm.hybrids import mix_gated

        hybrid = mix_gated(
            models, dev, output, force=force, threads=chosen_threads(threads), on_error=on_error,
            progress=Bars(as_json), notify=notify(as_json=as_json),
        )  # fmt: skip
        if as_json:
            print_json({"model": output, "members": hybrid.manifest["names"], "gate": hybrid.manifest["gate"]})
        return
    made = mixing.mix(
        models, dev, output, force=force, threads=chosen_threads(threads), on_error=on_error, progress=Bars(as_json),
        notify=notify(as_json=as_json),
    )  # fmt: skip
    if as_json:
        m = made.manifest
        print_json({"model": output, "weights": m["weights"], "dev_perplexity": m["dev_perplexity"],
                     "dev_perplexities": m["dev_perplexities"]})  # fmt: skip


@click.command()
@model_argument
@click.option("-o", "--output", required=True, help="Folder of the model to write.")
@click.option("--dev", multiple=True, help="Text of the new domain, on which the gate is learned.  [default: TEXT]")
@click.option("--text", multiple=True, help="Text of the new domain, whose counts and new words join the model.")
@click.option("--name", default="text", show_default=True, help="Of the source that TEXT becomes.")
@click.option("--min-count", type=Number(1), default=3, show_default=True,
              help="New words of TEXT seen less often are <UNK>.")  # fmt: skip
@click.option("--memory", type=Size(), default="4G", show_default=True, help="Memory for counting TEXT.")
@click.option("--seed", type=Number(0), default=1, show_default=True, help="Seed of all random choices.")
@on_error_option
@threads_option
@click.option("--force", is_flag=True, help="Replace a model of that name.")
@import_option
@json_option
def adapt(
    path: str, output: str, dev: tuple[str, ...], text: tuple[str, ...], name: str, min_count: int, memory: int,
    seed: int, on_error: str, threads: int | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Adapt MODEL, an SNM or a model of several sources, to a new domain, without the text it was trained on.

    With --dev alone, its gate learns anew, from a thousand words or more. With --text, a text of the domain joins the
    model as one more source: its counts, and words that the model does not know. The gate over both is learned on --dev
    or, without it, on the text itself, each part of which is scored by the counts of the others.
    """
    from snm.adapting import adapt as run

    if not dev and not text:
        raise click.UsageError("no text of the new domain; expected --dev, --text, or both")
    model = run(
        path, output, dev=list(dev), text=list(text), name=name, min_count=min_count, memory=memory,
        threads=chosen_threads(threads), seed=seed, on_error=on_error, force=force, progress=Bars(as_json),
        notify=notify(as_json=as_json),
    )  # fmt: skip
    m = model.manifest
    if as_json:
        print_json({"model": output, "kind": m["kind"], "words": m["vocabulary"]["words"], "links": m["links"]})
    else:
        notify()(f"wrote {output}: {m['vocabulary']['words']:,} words, {m['links']:,} links")
