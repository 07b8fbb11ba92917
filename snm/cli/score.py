"""Commands that score and predict: ppl, score, next, generate, explain."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
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
    threads_option,
)
from snm.cli.terminal import notify

if TYPE_CHECKING:
    from snm.model import LanguageModel, PerplexityReport


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


@click.command()
@model_argument
@click.argument("text", nargs=-1)
@threads_option
@click.option("--engine", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
              help="Where to score with a neural model.")  # fmt: skip
@on_error_option
@import_option
@json_option
def ppl(
    path: str, text: tuple[str, ...], threads: int | None, engine: str, on_error: str, as_json: bool
) -> None:  # fmt: skip
    """Perplexity of TEXT (or of standard input) under MODEL.

    All words and sentence ends are targets. Words outside an open vocabulary count as <UNK>; words outside a closed
    one are left out. <UNK> is easy to predict where many words are rare, so only perplexities of models with the same
    vocabulary can be compared.
    """
    from snm.text.encoding import encode_files
    from snm.text.files import STDIN

    model = load_model(path, "score")
    if engine != "cpu":
        model.move_to(engine)
    with Bars()("reading", 0) as bar:
        encoded = encode_files(text or STDIN, model.vocabulary, bar, on_error=on_error, notify=notify())
    report = model.perplexity(encoded, threads=chosen_threads(threads))
    print_json(asdict(report)) if as_json else _print_perplexity(report)


@click.command()
@model_argument
@click.argument("text", nargs=-1)
@click.option("--tokens", is_flag=True, help="Print every word with its log10 probability.")
@on_error_option
@import_option
@json_option
def score(path: str, text: tuple[str, ...], tokens: bool, on_error: str, as_json: bool) -> None:
    """log10 probability of each line of TEXT (or of standard input), its end included.

    Prints one line for each line of input, blank for a blank one and for one that --on-error leaves out. Words outside
    a closed vocabulary are left out. With --tokens, the columns are separated by tabs: the sentence's log10
    probability, then each word with its own, and OOV after a word outside the vocabulary.
    """
    from snm.text.files import STDIN, BadLines, names, read_lines

    model, bad = load_model(path, "score"), BadLines(on_error)
    for lines in read_lines(text or [STDIN], bad):
        for words in model.score_words(lines):
            click.echo(_score_line(model, words, tokens, as_json))
        sys.stdout.flush()
    bad.report(names(text or STDIN), notify())


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
        click.echo(f"{explanation.word}  P = {explanation.probability:.6g}")
        whole = explanation.probability or 1.0
        for part in explanation.parts[:top]:
            share = f"{part.share:.6g}  ({part.share / whole:6.1%})"
            click.echo(f"    {share}  weight {part.weight:.3f}  gate {part.gate:.3f}  {part.feature}")
        if len(explanation.parts) > top:
            rest = sum(part.share for part in explanation.parts[top:])
            click.echo(f"    {rest:.6g}  ({rest / whole:6.1%})  of {len(explanation.parts) - top} more")
