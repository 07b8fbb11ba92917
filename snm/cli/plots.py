"""The option --plot: pictures in the terminal, or in a file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from snm.markup.charts import Chart

TERMINAL = "-"
ENDINGS = ".svg", ".png"
WIDEST = 100  # columns of a picture


class Plotted(click.Command):
    """A command with --plot [FILE]: what follows is its value only if it is the name of a picture."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        made, given = list[str](), list(args)
        while given:
            argument = given.pop(0)
            if argument == "--":
                made += [argument, *given]
                break
            if argument == "--plot":
                is_file = bool(given) and given[0].lower().endswith(ENDINGS)
                argument = f"--plot={given.pop(0) if is_file else TERMINAL}"
            made.append(argument)
        return super().parse_args(ctx, made)


def _check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a name that is no picture's before any work."""
    if value not in (None, TERMINAL):
        from snm.markup.files import check

        check(str(value))
    return value


plot_option = click.option(
    "--plot", metavar="[FILE]", callback=_check,
    help="Draw it: in the terminal, or into a FILE that ends in .svg or .png (PNG: the extra plot).",
)  # fmt: skip


def show(charts: Sequence[Chart], where: str | None, as_json: bool = False) -> None:
    """Draw charts where --plot says; nowhere without it. JSON has no pictures beside it."""
    if where is None or not charts or (as_json and where == TERMINAL):
        return
    if where != TERMINAL:
        from snm.markup.files import write

        write(list(charts), where)
        return
    from snm.markup.characters import draw

    columns, plain = min(WIDEST, output_columns()), not _has_blocks()
    for chart in charts:
        click.echo("\n" + "\n".join(draw(chart, columns, plain)))


def output_columns() -> int:
    """Columns of the terminal that standard output is; those of a usual one, or COLUMNS, for a pipe."""
    if sys.stdout.isatty():
        try:
            return (os.get_terminal_size(sys.stdout.fileno()).columns or 80) - 1
        except OSError:
            return 79
    return shutil.get_terminal_size((80, 24)).columns if os.environ.get("COLUMNS", "").isdecimal() else 80


def _has_blocks() -> bool:
    """Whether standard output takes characters such as blocks and dots."""
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "cp65001")
