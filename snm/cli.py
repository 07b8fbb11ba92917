"""The command line: parse, call, print. Everything heavy is imported inside the commands."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snm import __version__
from snm.terminal import Group, Number, Size, chosen_threads, import_modules, notify, threads_option
from snm.terminal import bar as progress_bar
from snm.training_options import settings_of, training_options

if TYPE_CHECKING:
    from snm.evaluation import PerplexityReport
    from snm.model import LanguageModel

Command = Callable[..., Any]


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="snm")
def main() -> None:
    """Sparse non-negative matrix language models: train, score, predict, explain."""


# ---------------------------------------------------------------------------------------------
# shared options and output

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
import_option = click.option(
    "--import", "modules", multiple=True, metavar="MODULE", is_eager=True, expose_value=False, callback=import_modules,
    help="Import a Python module or file first, one that registers feature families.",
)  # fmt: skip
model_argument = click.argument("path", metavar="MODEL")


def _load(path: str) -> LanguageModel:
    import snm

    return snm.load(path)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def _print_perplexity(report: PerplexityReport) -> None:
    rows = [
        ("sentences", f"{report.sentences:,}"),
        ("tokens", f"{report.tokens:,}  (every word and sentence end)"),
        ("out of vocabulary", f"{report.oov:,}  ({report.oov_rate:.2%})"),
        ("log10 probability", f"{report.logprob10:.2f}"),
        ("perplexity", f"{report.ppl:.2f}"),
        ("  without OOVs", f"{report.ppl_no_oov:.2f}"),
        ("seconds", f"{report.seconds:.2f}"),
    ]
    for name, value in rows:
        click.echo(f"{name:<18} {value}")


# ---------------------------------------------------------------------------------------------
# commands


@main.command()
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Folder of the model to write.")
@training_options
@click.option("--force", is_flag=True, help="Overwrite a model of that name.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@import_option
@json_option
def train(text: tuple[str, ...], output: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Train a model on TEXT: files (plain, gz, bz2, xz, zst), folders, globs, or - for standard input.

    One sentence a line, words separated by white space.
    """
    from snm.memory import Peak
    from snm.pipeline import train as run

    begun = time.perf_counter()
    settings = settings_of(options)
    with Peak() as peak:
        model = run(text, output, settings, options["dev"], options["force"], progress_bar, notify(quiet))
    m = model.manifest
    size = sum(entry["bytes"] for entry in m["files"].values())
    if as_json:
        _print_json({"model": output, "bytes": size, **{k: m[k] for k in m if k in SUMMARY}})
    else:
        memory = f", {peak.bytes / 1e9:.1f} GB of memory at the peak" if peak.bytes else ""
        notify(quiet)(f"wrote {output}: {size / 1e6:,.1f} MB in {time.perf_counter() - begun:.1f} s{memory}")


SUMMARY = ("features", "rows", "links", "network", "parameters", "text", "training", "estimation")


@main.command()
@model_argument
@click.argument("text", nargs=-1)
@threads_option
@click.option("--engine", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
              help="Where to score with a neural model.")  # fmt: skip
@import_option
@json_option
def ppl(path: str, text: tuple[str, ...], threads: int | None, engine: str, as_json: bool) -> None:
    """Perplexity of TEXT (or of standard input) under MODEL.

    Over all words and sentence ends. Words outside an open vocabulary count as <UNK>, one word that is easy to
    predict where many are rare: perplexities compare only between models of the same vocabulary. In a closed one
    they are left out.
    """
    from snm.corpus import STDIN, encode_files
    from snm.evaluation import perplexity

    model = _load(path)
    if engine != "cpu":
        model.move_to(engine)
    with progress_bar("reading", 0) as bar:
        encoded = encode_files(text or STDIN, model.vocabulary, bar)
    report = perplexity(model, encoded, chosen_threads(threads))
    _print_json(asdict(report)) if as_json else _print_perplexity(report)


@main.command()
@model_argument
@click.argument("text", nargs=-1)
@click.option("--tokens", is_flag=True, help="Print every word with its log10 probability.")
@import_option
@json_option
def score(path: str, text: tuple[str, ...], tokens: bool, as_json: bool) -> None:
    """log10 probability of each line of TEXT (or of standard input), its end included.

    A line of output for every line of input; a blank line for a blank one. In a closed vocabulary words
    outside it are left out. With --tokens, columns separated by tabs: the sentence's, then every word with its
    own, and OOV after a word outside the vocabulary.
    """
    from snm.corpus import STDIN, read_lines

    model = _load(path)
    for lines in read_lines(text or [STDIN]):
        for words in model.score_words(lines):
            click.echo(_score_line(model, words, tokens, as_json))
        sys.stdout.flush()


def _score_line(model: LanguageModel, words: list[tuple[str, float]], tokens: bool, as_json: bool) -> str:
    from snm.model import total_score

    known = [model.vocabulary.id_of(word) != model.vocabulary.unknown for word, _ in words[:-1]] + [True]
    if as_json:
        line: dict[str, Any] = {"logprob10": None, "tokens": len(words), "oov": known.count(False)}
        if words:
            line["logprob10"] = total_score(words)
        if tokens:
            line["words"] = [
                {"word": word, "logprob10": None if math.isnan(p) else p, "oov": not k}
                for (word, p), k in zip(words, known, strict=False)
            ]
        return json.dumps(line, ensure_ascii=False)
    if not words:
        return ""
    columns = [f"{total_score(words):.6f}"]
    if tokens:
        columns += [f"{word} {p:.6f}{'' if k else ' OOV'}" for (word, p), k in zip(words, known, strict=True)]
    return "\t".join(columns)


@main.command(name="next")
@model_argument
@click.argument("words", nargs=-1)
@click.option("-k", type=Number(1), default=10, show_default=True, help="How many.")
@import_option
@json_option
def next_words(path: str, words: tuple[str, ...], k: int, as_json: bool) -> None:
    """The likeliest words after WORDS (none: at the start of a sentence)."""
    found = _load(path).next_words(" ".join(words), k)
    if as_json:
        _print_json([{"word": word, "probability": p} for word, p in found])
    else:
        for word, p in found:
            click.echo(f"{p:.6f}  {word}")


@main.command()
@model_argument
@click.option("-n", "count", type=Number(1), default=1, show_default=True, help="How many sentences.")
@click.option("--prompt", default="", help="Words that each sentence begins with.")
@click.option("--max-words", type=Number(1), default=100, show_default=True)
@click.option("--temperature", type=float, default=1.0, show_default=True, help="Below 1 likelier, above 1 wilder.")
@click.option("--unknown", is_flag=True, help="Let <UNK> be drawn too.")
@click.option("--seed", type=Number(0), help="Seed, to get the same sentences again.")
@import_option
def generate(
    path: str, count: int, prompt: str, max_words: int, temperature: float, unknown: bool, seed: int | None
) -> None:
    """Draw sentences from MODEL."""
    model = _load(path)
    for i in range(count):
        click.echo(model.generate(None if seed is None else (seed, i), prompt, max_words, temperature, unknown))


@main.command()
@model_argument
@click.argument("sentence")
@click.option("--top", type=Number(1), default=5, show_default=True, help="Features shown for a word.")
@import_option
@json_option
def explain(path: str, sentence: str, top: int, as_json: bool) -> None:
    """Which features fired for every word of SENTENCE, and what each brought to its probability.

    The shares of a word add up to its probability exactly. The weight of a feature is its part of
    the whole distribution at that place, the gate what its row is multiplied by there.
    """
    explanations = _load(path).explain(sentence)
    if as_json:
        _print_json([asdict(explanation) for explanation in explanations])
        return
    for explanation in explanations:
        click.echo(f"{explanation.word}  P = {explanation.probability:.6g}")
        whole = explanation.probability or 1.0
        for part in explanation.parts[:top]:
            share = f"{part.share:.6g}  ({part.share / whole:6.1%})"
            click.echo(f"    {share}  weight {part.weight:.3f}  gate {part.gate:.3f}  {part.feature}")
        if len(explanation.parts) > top:
            rest = sum(part.share for part in explanation.parts[top:])
            click.echo(f"    {rest:.6g}  ({rest / whole:6.1%})  of {len(explanation.parts) - top} more")


@main.command()
@model_argument
@json_option
def info(path: str, as_json: bool) -> None:
    """What MODEL is: features, size, how it was trained."""
    from snm.storage import read_manifest

    m = read_manifest(Path(path))
    if as_json:
        _print_json(m)
        return
    describe = {"mixture": _mixture_rows, "hsme": _network_rows, "rnn": _network_rows}.get(m["kind"], _model_rows)
    rows = [*describe(m), ("size", _size_text(m))]
    rows.append(("written by", f"{m['written_by']}, format {m['version']}"))
    for name, value in rows:
        click.echo(f"{name:<13} {value}")


@main.command()
@model_argument
@click.argument("file", default="-", type=click.File("w", encoding="utf-8", atomic=True))
@import_option
def export(path: str, file: Any) -> None:
    """Write a backoff MODEL (kn, katz, sbo) as an ARPA FILE (default: standard output)."""
    from snm.arpa import require_backoff, write_arpa

    model = require_backoff(_load(path), path)
    with progress_bar("exporting", len(model.targets) + 1) as bar:
        write_arpa(model, file, bar)


@main.command(name="import")
@click.argument("file")
@click.option("-o", "--output", required=True, help="Folder of the model to write.")
@click.option("--force", is_flag=True, help="Overwrite a model of that name.")
def import_arpa(file: str, output: str, force: bool) -> None:
    """Turn an ARPA FILE (plain or compressed) of any toolkit into a model."""
    from snm.arpa import read_arpa

    with progress_bar("importing", 0) as bar:
        model = read_arpa(file, output, force, bar)
    notify(False)(f"wrote {output}: {len(model.vocabulary):,} words, {len(model.targets):,} n-grams")


def _size_text(m: dict[str, Any]) -> str:
    from snm.storage import size_of

    size = sum(entry["bytes"] for entry in m["files"].values())
    count, what = size_of(m)
    return f"{size:,} bytes, {size / count:.1f} a {what.removesuffix('s')}"


def _mixture_rows(m: dict[str, Any]) -> list[tuple[str, str]]:
    parts = zip(m["members"], m["weights"], m["dev_perplexities"], strict=True)
    rows = [(name, f"weight {w:.4f}, held-out perplexity alone {ppl:.2f}") for name, w, ppl in parts]
    return [*rows, ("mixed", f"held-out perplexity {m['dev_perplexity']:.2f}")]


def _network_rows(m: dict[str, Any]) -> list[tuple[str, str]]:
    from snm.baselines.neural import shape_text

    text, t = m["text"], m["training"]
    rows = [
        ("network", shape_text(m["network"])),
        ("vocabulary", f"{m['vocabulary']['words']:,} words, {'closed' if m['vocabulary']['closed'] else 'open'}"),
        ("parameters", f"{m['parameters']:,}"),
        ("trained on", f"{text['tokens']:,} tokens, {text['sentences']:,} sentences, {text['oov']:,} OOVs"),
    ]
    if t["perplexities"]:
        best = f"held-out perplexity {min(t['perplexities']):.2f}"
        rows.append(("training", f"{len(t['losses'])} passes on {t['device']}, kept pass {t['best_pass']}, {best}"))
    return rows


def _model_rows(m: dict[str, Any]) -> list[tuple[str, str]]:
    text = m["text"]
    rows = [
        ("features", m["features"]),
        ("vocabulary", f"{m['vocabulary']['words']:,} words, {'closed' if m['vocabulary']['closed'] else 'open'}"),
        ("rows", f"{m['rows']:,} features"),
        ("links", f"{m['links']:,} feature-target pairs"),
        ("hash", f"{m['hash_bits']} bits; {m['expected_collisions']:.2g} features expected to share a key"),
        ("trained on", f"{text['tokens']:,} tokens, {text['sentences']:,} sentences, {text['oov']:,} OOVs"),
    ]
    if "estimation" in m:
        return [*rows, ("estimation", ", ".join(f"{name} {value}" for name, value in m["estimation"].items()))]
    t = m["training"]
    marks = f"{m['pages']['shadowed']} features have the page and mark of another"
    rows.append(("weights", f"{8 * m['pages']['code_bytes']} bits; {marks}"))
    rows.append(("loss", f"{t['loss']}, {t['optimiser']} at {t['rate']}, kept pass {t['best_pass']}"))
    rows.append(("metafeatures", f"{len(t['metafeatures'].split(','))} conjunctions, {t['slots']:,} slots"))
    gate = m["gate"]
    if gate is not None:
        steps = f"held-out perplexity {gate['ungated']:.2f} → {min(gate['perplexities']):.2f}"
        rows.append(("gate", f"{gate['units']} units, learned on {gate['events']:,} tokens, {steps}"))
    if t["prune"] > 1:
        rows.append(("pruned", f"features seen fewer than {t['prune']} times, n-grams of up to five words aside"))
    return rows


@main.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--dev", multiple=True, required=True, help="Held-out text to find the weights on.")
@click.option("-o", "--output", help="Folder of the mixture to write.")
@click.option("--test", multiple=True, help="Text to judge the mixture on, where none is written.")
@click.option("--test-file", "test_files", multiple=True,
              help="Probabilities of the test text, one for each MODEL that is a file of them.")  # fmt: skip
@threads_option
@click.option("--force", is_flag=True, help="Overwrite a model of that name.")
@import_option
@json_option
def mix(
    models: tuple[str, ...], dev: tuple[str, ...], output: str | None, test: tuple[str, ...],
    test_files: tuple[str, ...], threads: int | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Mix two or more MODELs linearly, with the weights that are best on held-out text.

    A MODEL is a model's folder, an ARPA file, or, from any other program, a file of probabilities of the held-out text:
    one number (or its log10) for every word and sentence end, in order. All models must have the same words.

    With -o the mixture is written, a model like any other. With a file of probabilities it cannot be: its weights and
    perplexities are printed.
    """
    from snm import mixing

    plain = [model for model in models if mixing.is_plain(Path(model))]
    if output is None:
        found = mixing.weigh(models, dev, test, test_files, chosen_threads(threads), notify(as_json))
        if as_json:
            _print_json({**asdict(found), "weights": found.weights.tolist()})
        return
    if plain or test or test_files:
        what = f"{plain[0]} holds probabilities of one text" if plain else "--test judges a mixture that is not written"
        raise click.UsageError(f"{what}; leave out -o to see weights and perplexities, or write a mixture of models")
    made = mixing.mix(models, dev, output, force, chosen_threads(threads), notify(as_json))
    if as_json:
        m = made.manifest
        _print_json({"model": output, "weights": m["weights"], "dev_perplexity": m["dev_perplexity"],
                     "dev_perplexities": m["dev_perplexities"]})  # fmt: skip


@main.command()
@model_argument
@click.argument("text", nargs=-1)
@click.option("--contexts", type=Number(1), default=1000, show_default=True, help="Contexts to add up.")
@import_option
@json_option
def verify(path: str, text: tuple[str, ...], contexts: int, as_json: bool) -> None:
    """Check MODEL: checksums, rows and row sums, and that probabilities sum to one.

    The sum of P(w | h) over the whole vocabulary is taken for contexts h of TEXT, or, without one, of
    sentences drawn from the model.
    """
    from snm.evaluation import verify as check

    with progress_bar("adding up", contexts) as bar:
        report = check(path, text, contexts, bar)
    if as_json:
        _print_json(asdict(report))
        return
    click.echo("checksums, rows and links are as they should be")
    click.echo(
        f"over {report.contexts:,} contexts ({report.at_start} sentence starts, {report.with_unknown} with <UNK>), "
        f"the sum of all probabilities is at most {report.worst:.1e} away from 1"
    )


@main.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.option("--corpus", required=True,
              help="Folder with train.txt, valid.txt and test.txt, plain or compressed; or the One Billion Word "
                   "Benchmark's folder as it is released.")  # fmt: skip
@click.option(
    "--shard", type=Number(0), default=0, show_default=True, help="The benchmark's held-out shard to test on."
)
@click.option("-o", "--output", required=True, help="Folder for the results; a run that was stopped goes on there.")
@click.option("--prune", type=Number(1), default=1, show_default=True,
              help="Leave features out of SNM that were seen less often, short n-grams aside.")  # fmt: skip
@click.option("--events", type=Number(1), default=1 << 32, help="Train SNM on about so many events.  [default: all]")
@click.option("--take", multiple=True, metavar="FOLDER",
              help="Take models that are missing from the results of another run, such as one on a GPU.")  # fmt: skip
@click.option("--only", multiple=True, metavar="MODEL",
              help="Train this model and make no table: its results are for --take elsewhere.")  # fmt: skip
@click.option("--keep-models", is_flag=True, help="Keep the models too, not only their probabilities of the text.")
@click.option("--memory", type=Size(), default="4G", show_default=True, help="Memory for training, as of snm train.")
@threads_option
@json_option
def reproduce(
    tables: tuple[str, ...],
    corpus: str,
    shard: int,
    output: str,
    prune: int,
    events: int,
    take: tuple[str, ...],
    only: tuple[str, ...],
    keep_models: bool,
    memory: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """The paper's tables on a corpus: table1, table2, table3, ablations.

    What is missing is trained; mixture weights are found on the valid text, perplexities are the test text's. Each
    table is printed and written to the folder as Markdown, JSON and, where matplotlib is installed, a plot; with
    table3 there is a plot of perplexity against words scored a second on one core, too.

    SNM is the paper's here, nothing pruned and all events looked at; where a text is too large for that, --prune and
    --events say how far to depart from it.
    """
    from snm.errors import MissingExtra
    from snm.reproduce import Workspace, markdown, plot, plot_frontier

    folder, say = Path(output), notify(False)
    work = Workspace(
        folder, Path(corpus), chosen_threads(threads), memory, keep_models, shard, prune, events, progress_bar, say
    )
    for other in take:
        work.take(Path(other))
    if only:
        work.train_only(only, tables)
        return
    for name in tables:
        rows = work.table(name)
        text = markdown(name, work.corpus.name + work.limits, rows)
        (folder / f"{name}.md").write_text(text)
        (folder / f"{name}.json").write_text(
            json.dumps({"table": name, "corpus": work.corpus.name + work.limits, "rows": rows}, indent=1)
        )
        _print_json({"table": name, "rows": rows}) if as_json else click.echo(text)
        try:
            plot(name, work.corpus.name, rows, folder / f"{name}.png")
            if name == "table3":
                plot_frontier(work.corpus.name, rows, folder / f"{name}-frontier.png")
        except MissingExtra as error:
            say(f"no plot: {error}")


@main.command()
@click.option("-o", "--output", help="Keep the models in this folder.")
@threads_option
def demo(output: str | None, threads: int | None) -> None:
    """Train on the English that Python carries with it, and show what the models can do."""
    from snm.demo import run

    run(output, chosen_threads(threads), progress_bar, click.echo)


if __name__ == "__main__":
    main()
