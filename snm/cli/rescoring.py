"""The command rescore."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from snm.cli.options import (
    GroupedCommand,
    GroupedOption,
    import_option,
    json_option,
    load_model,
    model_argument,
    print_json,
    spells,
    unk_option,
)

if TYPE_CHECKING:
    from snm.rescoring import Report


@click.command(name="rescore", cls=GroupedCommand)
@model_argument
@click.argument("nbest")
@click.option("-o", "--output", metavar="FILE", help="Where to write the lists, the best hypothesis first: JSON lines, "
              "or, if it ends in .txt, names and best texts. Without it, only figures are printed.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["nbest", "lattice"]), default="nbest", show_default=True,
              help="NBEST is lists, JSON lines or a Kaldi folder, or lattices, text of OpenFst or Kaldi.")  # fmt: skip
@click.option("--model-weight", cls=GroupedOption, group="Weights", type=float, metavar="X",
              help="Of the model's ln P.  [default: 1]")  # fmt: skip
@click.option("--old-weight", cls=GroupedOption, group="Weights", type=float, metavar="X",
              help="Of the old language score.  [default: 0]")  # fmt: skip
@click.option("--word-bonus", cls=GroupedOption, group="Weights", type=float, metavar="X",
              help="Added for each word.  [default: 0]")  # fmt: skip
@click.option("--dev", cls=GroupedOption, group="Weights", metavar="NBEST", help="Lists with references: the weights "
              "are those with the fewest word errors on them.")  # fmt: skip
@click.option("--dev-reference", cls=GroupedOption, group="Weights", metavar="FILE", help="The texts of --dev, where "
              "its lists have none.")  # fmt: skip
@click.option("--reference", metavar="FILE", help="The true texts, a name and its words on each line. Word errors are "
              "counted then, as for lists that have a reference.")  # fmt: skip
@click.option("--symbols", metavar="FILE", help="The table of words of lattices whose labels are numbers.")
@click.option("--beam", type=click.IntRange(1), default=64, show_default=True, help="Paths that are kept at a node of "
              "a lattice.")  # fmt: skip
@unk_option
@import_option
@json_option
def rescore_command(
    path: str, nbest: str, output: str | None, form: str, model_weight: float | None, old_weight: float | None,
    word_bonus: float | None, unk: bool, as_json: bool, **how: Any,
) -> None:  # fmt: skip
    """Weigh the hypotheses of a recogniser anew with MODEL.

    NBEST has lines such as {"id": "a", "nbest": [{"text": "some words", "acoustic": -1.5, "language": -2.0}],
    "reference": "some words"}, with natural logarithms; language and reference may be missing. A Kaldi folder has the
    files words_text, ac_cost and perhaps lm_cost. A hypothesis scores acoustic + X ln P(text) + X language + X words.
    """
    from snm.errors import SettingsError
    from snm.rescoring import Weights, rescore_file

    given = {"model": model_weight, "language": old_weight, "word": word_bonus}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and how["dev"] is not None:
        raise SettingsError("--dev tunes the weights, and weights are given; expected one of the two")
    weights = Weights(**chosen) if chosen or how["dev"] is None else None
    model = load_model(path, "score")
    report = rescore_file(model, nbest, output, weights, form=form, spelled=spells(model, unk), **how)
    print_json(asdict(report)) if as_json else _print_report(report)


def _print_report(report: Report) -> None:
    rows = [
        ("utterances", f"{report.utterances:,}"),
        ("hypotheses", f"{report.hypotheses:,}"),
        ("changed", f"{report.changed:,}"),
        ("weights", f"model {report.weights.model:.4g}, old {report.weights.language:.4g}, "
                    f"words {report.weights.word:.4g}"),
        ("seconds", f"{report.seconds:.2f}"),
    ]  # fmt: skip
    if report.words:
        for name, errors in (("before", report.errors_before), ("now", report.errors), ("best", report.fewest_errors)):
            if errors is not None:
                rows.append((f"word errors, {name}", f"{errors:,} of {report.words:,}  ({errors / report.words:.2%})"))
    for name, value in rows:
        click.echo(f"{name:<20} {value}")
