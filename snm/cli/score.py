"""Commands that score and predict: ppl, score, next, generate, explain."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    Number,
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
from snm.cli.plots import Plotted, plot_option, show
from snm.cli.terminal import notify

if TYPE_CHECKING:
    from snm.markup.charts import Chart
    from snm.model import LanguageModel, PerplexityReport


def _print_perplexity(report: PerplexityReport) -> None:
    rows = [
        ("sentences", f"{report.sentences:,}"),
        (
            "tokens",
            f"{report.tokens:,}  (every {'word' if report.words == report.tokens else 'piece'} and sentence end)",
        ),
        ("out of vocabulary", f"{report.oov:,}  ({report.oov_rate:.2%})"),
        ("log10 probability", f"{report.logprob10:.2f}"),
        ("perplexity", f"{report.ppl:.2f}  (OOVs count as <UNK>)"),
        ("  without OOVs", f"{report.ppl_no_oov:.2f}"),
        ("  OOVs spelled", _shown(report.ppl_spelled, ".2f")),
        *([] if report.words == report.tokens else [_word_row(report)]),
        ("bits a byte", f"{_shown(report.bits_per_byte, '.4f')}  ({report.bytes:,} bytes, OOVs spelled)"),
        ("seconds", f"{report.seconds:.2f}"),
    ]
    for name, value in rows:
        click.echo(f"{name:<18} {value}")


def _word_row(report: PerplexityReport) -> tuple[str, str]:
    """The perplexity of what white space separates, where a tokenizer divides it."""
    words = "unknown" if report.words is None else f"{report.words:,}"
    return "  a word", f"{_shown(report.ppl_word, '.2f')}  ({words} words and line ends, OOVs spelled)"


def _shown(value: float | None, form: str) -> str:
    return "unknown, the model has no spelling model" if value is None else format(value, form)


@click.command(cls=Plotted)
@model_argument
@click.argument("text", nargs=-1)
@threads_option
@click.option("--engine", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
              help="Where to score with a neural model.")  # fmt: skip
@on_error_option
@plot_option
@import_option
@json_option
def ppl(
    path: str, text: tuple[str, ...], threads: int | None, engine: str, on_error: str, plot: str | None, as_json: bool
) -> None:  # fmt: skip
    """Perplexity of TEXT (or of standard input) under MODEL.

    All words and sentence ends are targets. Words outside an open vocabulary count as <UNK>; words outside a closed
    one are left out. <UNK> is easy to predict where many words are rare, so only such perplexities of models with the
    same vocabulary can be compared. With OOVs spelled, and in bits a byte, every word has a probability of its own, and
    all models can be compared. Bytes are those of the words, and one for the space or line end after each. Where the
    model has a tokenizer, perplexity a word is that of what white space separates, and tokens are its pieces.
    --plot draws perplexity by the frequency of the word and by the length of the sentence.
    """
    from snm.text.encoding import encode_files
    from snm.text.files import STDIN

    model = load_model(path, "score")
    if engine != "cpu":
        model.move_to(engine)
    with Bars()("reading", 0) as bar:
        encoded = encode_files(
            text or STDIN, model.vocabulary, bar, on_error=on_error, notify=notify(), spelling=model.spelling
        )
    charts: list[Chart] = []
    if plot is None:
        report = model.perplexity(encoded, threads=chosen_threads(threads))
    else:
        from snm.reporting.plots import of_text

        report, charts = of_text(model, encoded, chosen_threads(threads))
    print_json(asdict(report)) if as_json else _print_perplexity(report)
    show(charts, plot, as_json)


@click.command()
@model_argument
@click.argument("text", nargs=-1)
@click.option("--tokens", is_flag=True, help="Print every word with its log10 probability.")
@click.option("--ppl", "with_ppl", is_flag=True, help="Print the perplexity, the tokens and the OOVs of a line too.")
@unk_option
@threads_option
@on_error_option
@import_option
@json_option
def score(
    path: str, text: tuple[str, ...], tokens: bool, with_ppl: bool, unk: bool, threads: int | None, on_error: str,
    as_json: bool,
) -> None:  # fmt: skip
    """log10 probability of each line of TEXT (or of standard input), its end included.

    Prints one line for each line of input, blank for a blank one and for one that --on-error leaves out. A word outside
    the vocabulary is spelled: it has the probability of <UNK> times that of its string among all others. With --unk it
    counts as <UNK>, which has the probability of all such words together, so that gibberish is probable. Words outside
    a closed vocabulary are left out. With --tokens, the columns are separated by tabs: the sentence's log10
    probability, then each word with its own, and OOV after a word outside the vocabulary. With --ppl, the columns are
    the log10 probability, the perplexity, the tokens (words and the sentence end) and the OOVs.
    """
    from snm import parallel
    from snm.text.files import STDIN, BadLines, find_files, line_blocks, names

    if tokens and with_ppl:
        raise click.UsageError("--tokens and --ppl exclude each other; --json has the perplexity too")
    model, bad = load_model(path, "score"), BadLines(on_error)
    spelled, threads = spells(model, unk), chosen_threads(threads)
    show = partial(_show_words if tokens else _show_lines, model, spelled=spelled, with_ppl=with_ppl, as_json=as_json)
    for file in find_files(text or [STDIN]):
        at_once = threads if file != STDIN and model.scores_in_parallel else 1  # a pipe is answered at once
        for shown in parallel.ordered(partial(show, threads=threads // at_once), line_blocks(file, bad), at_once):
            click.echo(shown, nl=False)
            sys.stdout.flush()
    report_unspelled(model, unk)
    bad.report(names(text or STDIN), notify())


def _show_lines(
    model: LanguageModel, block: bytes, spelled: bool, threads: int, with_ppl: bool, as_json: bool
) -> str:  # fmt: skip
    """What is printed for the lines of a block."""
    from snm.scoring.lines import score_block

    scores = score_block(model, block, spelled=spelled, threads=threads)
    columns = (scores.logprob10.tolist(), scores.ppl.tolist(), scores.tokens.tolist(), scores.oov.tolist())
    if as_json:
        lines = [_json_line(*line) for line in zip(*columns, strict=True)]
    elif with_ppl:
        lines = [f"{p:.6f}\t{ppl:.2f}\t{n}\t{oov}" if n else "" for p, ppl, n, oov in zip(*columns, strict=True)]
    else:
        lines = [f"{p:.6f}" if n else "" for p, n in zip(columns[0], columns[2], strict=True)]
    return "".join(f"{line}\n" for line in lines)


def _json_line(p: float, ppl: float, tokens: int, oov: int, **more: Any) -> str:
    line = {"logprob10": p, "ppl": ppl} if tokens else {"logprob10": None, "ppl": None}
    return json.dumps({**line, "tokens": tokens, "oov": oov, **more}, ensure_ascii=False)


def _show_words(
    model: LanguageModel, block: bytes, spelled: bool, threads: int, with_ppl: bool, as_json: bool
) -> str:  # fmt: skip
    """What --tokens prints for the lines of a block."""
    scored = model.score_words(block.decode().split("\n")[:-1], spelled=spelled)
    return "".join(_show_line(model, words, as_json) + "\n" for words in scored)


def _show_line(model: LanguageModel, words: list[tuple[str, float]], as_json: bool) -> str:
    from snm.model import total_score

    known = [model.vocabulary.id_of(word) != model.vocabulary.unknown for word, _ in words[:-1]] + [True]
    if as_json:
        total, scored = total_score(words), sum(not math.isnan(p) for _, p in words)
        listed = [
            {"word": word, "logprob10": None if math.isnan(p) else p, "oov": not k}
            for (word, p), k in zip(words, known, strict=False)
        ]
        ppl = 10 ** (-total / scored) if words else math.nan
        return _json_line(total, ppl, len(words), known.count(False), words=listed)
    if not words:
        return ""
    columns = [f"{total_score(words):.6f}"]
    columns += [f"{word} {p:.6f}{'' if k else ' OOV'}" for (word, p), k in zip(words, known, strict=True)]
    return "\t".join(columns)


@click.command(name="next")
@model_argument
@click.argument("words", nargs=-1)
@click.option("-k", type=Number(1), default=10, show_default=True, help="How many.")
@import_option
@json_option
def next_words(path: str, words: tuple[str, ...], k: int, as_json: bool) -> None:
    """The most probable words after WORDS; without WORDS, at the start of a sentence."""
    found = load_model(path, "next").next_words(" ".join(words), k=k)
    if as_json:
        print_json([{"word": word, "probability": p} for word, p in found])
    else:
        for word, p in found:
            click.echo(f"{p:.6f}  {word}")


@click.command()
@model_argument
@click.option("-n", "count", type=Number(1), default=1, show_default=True, help="How many sentences.")
@click.option("--prompt", default="", help="Words that each sentence begins with.")
@click.option("--max-words", type=Number(1), default=100, show_default=True)
@click.option("--temperature", type=float, default=1.0, show_default=True,
              help="Below 1, probable words are more frequent; above 1, less.")  # fmt: skip
@click.option("--unknown", is_flag=True, help="Sample <UNK> too.")
@click.option("--seed", type=Number(0), help="Seed, to get the same sentences again.")
@import_option
def generate(
    path: str, count: int, prompt: str, max_words: int, temperature: float, unknown: bool, seed: int | None
) -> None:
    """Sample sentences from MODEL."""
    model = load_model(path, "next")
    for i in range(count):
        seeds = None if seed is None else (seed, i)
        click.echo(model.generate(prompt, seed=seeds, max_words=max_words, temperature=temperature, unknown=unknown))


@click.command()
@model_argument
@click.argument("sentence")
@click.option("--top", type=Number(1), default=5, show_default=True, help="Features shown for a word.")
@import_option
@json_option
def explain(path: str, sentence: str, top: int, as_json: bool) -> None:
    """The features of each word of SENTENCE, and their shares of its probability.

    The shares of a word add up to its probability exactly. The weight of a feature is its part of the whole
    distribution at that position; the gate is the factor of its row there.
    """
    explanations = load_model(path, "next").explain(sentence)
    if as_json:
        print_json([asdict(explanation) for explanation in explanations])
        return
    for explanation in explanations:
        whole = explanation.probability or 1.0
        of = ", ".join(f"{share / whole:.2f} from {name}" for name, share in explanation.sources.items())
        click.echo(f"{explanation.word}  P = {explanation.probability:.6g}{of and f'  ({of})'}")
        for part in explanation.parts[:top]:
            share = f"{part.share:.6g}  ({part.share / whole:6.1%})"
            source = "" if part.source is None else f"  {part.source}"
            click.echo(f"    {share}  weight {part.weight:.3f}  gate {part.gate:.3f}  {part.feature}{source}")
        if len(explanation.parts) > top:
            rest = sum(part.share for part in explanation.parts[top:])
            click.echo(f"    {rest:.6g}  ({rest / whole:6.1%})  of {len(explanation.parts) - top} more")
