"""The command plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from snm.cli.bars import Bars
from snm.cli.options import GroupedCommand, Number, Size, import_option, json_option, print_json
from snm.cli.plots import Plotted, plot_option, show
from snm.cli.train import settings_of, training_options
from snm.cli.warmup import compiling

if TYPE_CHECKING:
    from snm.planning.plan import Plan


class PlottedPlan(Plotted, GroupedCommand):
    """A command with --plot and groups of options."""


@click.command(cls=PlottedPlan)
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--output", default=".", help="Folder on the disk that would be used.  [default: this folder]")
@click.option("--nodes", type=Number(1), default=1, show_default=True, help="Machines that count together.")
@click.option("--sample", type=Size(), default="64M", show_default=True,
              help="Text to read; more is more accurate and takes longer.")  # fmt: skip
@plot_option
@training_options
@import_option
@json_option
def plan(
    text: tuple[str, ...], output: str, nodes: int, sample: int, plot: str | None, as_json: bool, **options: Any
) -> None:
    """What training a model on TEXT would take: its size, memory, disk and time.

    The other options are those of train. A sample of the text is read, and the options are tried on parts of it, so
    times are those of this machine as busy as it is now. Compressed files are sampled from their beginnings. Expect
    errors of up to a quarter. With --nodes, partitions are counted by several machines, one a task: each reads all
    tokens once, and one gets all counts. --plot draws how rows and links grow with the text.
    """
    from snm import warmup
    from snm.planning.plan import plan as make
    from snm.planning.sample import seekable_files

    settings = settings_of(options)
    seekable_files(text)
    if not warmup.is_ready(settings):
        with compiling("train" if settings.model == "snm" else "kn", as_json):
            warmup.compile_training(settings)
    dev = options["dev"] or None
    made = make(text, output, settings, dev=dev, nodes=nodes, sample=sample, progress=Bars(as_json))
    if as_json:
        print_json(asdict(made))
    else:
        for name, value in _rows(made):
            click.echo(f"{name:<13} {value}")
    if plot is not None:
        from snm.reporting.plots import of_growth

        show(of_growth(made.growth), plot, as_json)


def _rows(p: Plan) -> list[tuple[str, str]]:
    from snm.disk import size

    read = "read as a whole" if p.sample_bytes >= p.text_bytes else f"of which {size(p.sample_bytes)} were read"
    at = max(p.disk_by_stage, key=lambda stage: p.disk_by_stage[stage])
    enough = "" if p.disk <= p.disk_free else ": too little"
    walks = "the text is walked over for each"
    spilled = f"from {size(p.spilled_bytes)} of links on disk" if p.spilled_bytes else walks
    rows = [
        ("text", f"{size(p.text_bytes)}, {read}"),
        ("tokens", f"{p.tokens:,}"),
        ("vocabulary", f"{p.words:,} words"),
        ("rows", f"{p.rows:,} features"),
        ("links", f"{p.links:,} feature-target pairs"),
        ("partitions", f"{p.partitions:,}, {spilled}" if p.partitions > 1 else "1"),
        ("memory", f"{size(p.memory)} at the peak"),
        ("disk", f"{size(p.disk)} at the peak, while {at}; {size(p.disk_free)} are free{enough}"),
        ("model", size(p.model_bytes)),
        ("time", duration(p.seconds)),
        *((f"  {stage}", duration(seconds)) for stage, seconds in p.seconds_by_stage.items()),
    ]
    if p.nodes > 1:
        rows.append(("nodes", f"{p.nodes:,}, {p.tasks:,} tasks, {size(p.moved_bytes)} moved between nodes"))
    return rows


def duration(seconds: float) -> str:
    """Seconds for a reader."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
