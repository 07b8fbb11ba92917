"""The group of all commands."""

from __future__ import annotations

import click

from snm.cli import (
    convert,
    counts,
    filtering,
    hub,
    inspect,
    plan,
    prune,
    report,
    reproduce,
    rescoring,
    score,
    serve,
    train,
    warmup,
)  # fmt: skip
from snm.cli.terminal import Group
from snm.version import __version__


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="snm")
def main() -> None:
    """Sparse non-negative matrix language models: train, score, predict, explain.

    A MODEL is a folder that train wrote, or an ARPA file of any toolkit, plain or compressed. An ARPA file is converted
    each time; import does that once.
    """


for command in (
    train.train, plan.plan, counts.vocab, counts.count, counts.merge,
    score.ppl, score.score, score.next_words, score.generate, score.explain, serve.serve,
    filtering.filter_command, rescoring.rescore_command,
    inspect.info, inspect.verify, report.report, report.compare,
    convert.export, convert.import_arpa, convert.mix, convert.adapt, prune.prune,
    hub.push, hub.pull,
    reproduce.reproduce, reproduce.demo, warmup.warmup,
):  # fmt: skip
    main.add_command(command)
