"""Commands for counts that add: vocab, count, merge."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    TOKENIZER,
    Number,
    Size,
    chosen_threads,
    import_option,
    json_option,
    on_error_option,
    print_json,
    threads_option,
)
from snm.cli.terminal import notify
from snm.cli.warmup import compiling

if TYPE_CHECKING:
    from snm.counted import CountedText

memory_option = click.option(
    "--memory", type=Size(), default="4G", show_default=True, help="Memory to use, mapped files not counted."
)
force_option = click.option("--force", is_flag=True, help="Replace a folder of counts of that name.")
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--output", default="-", help="File to write.  [default: standard output]")
@click.option("--min-count", type=Number(1), default=3, show_default=True, help="Leave out words seen less often.")
@click.option("--max-words", type=Number(1), help="Keep only the most frequent words.")
@click.option("--tokenizer", **TOKENIZER)
@on_error_option
@memory_option
@threads_option
def vocab(
    text: tuple[str, ...], output: str, min_count: int, max_words: int | None, tokenizer: str | None, on_error: str,
    memory: int, threads: int | None,
) -> None:  # fmt: skip
    """Write the words of TEXT, one a line, the most frequent first, as the option --vocab reads them.

    With --tokenizer, the pieces that it makes: give the same one to snm count and snm train.
    """
    from snm.counted import write_vocabulary

    say = notify()
    words = write_vocabulary(
        text, output, min_count=min_count, max_words=max_words, on_error=on_error, memory=memory,
        threads=chosen_threads(threads), tokenizer=tokenizer, progress=Bars(), notify=say,
    )  # fmt: skip
    if output != "-":
        say(f"wrote {output}: {len(words) - 3:,} words")


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("--vocab", help="File with the vocabulary, one word a line, such as snm vocab writes. Needed, but for "
              "the tokenizer bytes.")  # fmt: skip
@click.option("--tokenizer", **TOKENIZER)
@click.option("-o", "--output", required=True, help="Folder of the counts to write.")
@click.option("--preset", help="Features by name, see snm train.  [default: small]")
@click.option("--features", help="Features by specification, see snm train.")
@click.option("--closed", is_flag=True, help="Closed vocabulary: <UNK> is never predicted.")
@click.option("--document", is_flag=True,
              help="TEXT has documents, separated by blank lines: features reach across sentences.")  # fmt: skip
@on_error_option
@memory_option
@threads_option
@click.option("--engine", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", show_default=True,
              help="Where to count; auto takes a GPU where there is one, for texts of a million tokens.")  # fmt: skip
@force_option
@quiet_option
@import_option
@json_option
def count(
    text: tuple[str, ...], vocab: str | None, tokenizer: str | None, output: str, preset: str | None,
    features: str | None, closed: bool,
    document: bool, on_error: str, memory: int, threads: int | None, engine: str, force: bool, quiet: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Count the features of TEXT for models to be trained later (snm train --counts), or to be added to other counts.

    Features with word classes are counted when a model is trained, because classes are learned from the whole text.
    """
    from snm.features.specification import PRESETS
    from snm.pipeline import count_text
    from snm.settings import Settings
    from snm.text.files import find_files

    if preset is not None and features is not None:
        raise click.UsageError("--preset and --features exclude each other; give one of them")
    if preset is not None and preset not in PRESETS:
        raise click.BadParameter(f"no preset {preset!r}; expected one of {', '.join(PRESETS)}", param_hint="--preset")
    settings = Settings(
        vocab=vocab, tokenizer=tokenizer, features=preset if features is None else features, closed=closed,
        document=document, on_error=on_error, memory=memory, threads=chosen_threads(threads), engine=engine,
    )  # fmt: skip
    find_files(text)
    _compile(output, force, as_json, quiet)
    begun = time.perf_counter()
    made = count_text(text, output, settings, force=force, progress=Bars(as_json, quiet), notify=notify(quiet, as_json))
    _report(made, begun, quiet, as_json)


@click.command()
@click.argument("counts", nargs=-1, required=True, metavar="COUNTS...")
@click.option("-o", "--output", required=True, help="Folder of the counts to write.")
@memory_option
@threads_option
@force_option
@quiet_option
@json_option
def merge(
    counts: tuple[str, ...], output: str, memory: int, threads: int | None, force: bool, quiet: bool, as_json: bool
) -> None:
    """Add COUNTS, folders of snm count or snm merge: the result is that of counting all their text, in this order.

    They must have the same features and vocabulary.
    """
    from snm.counted import CountedText, merge_counts

    parts = [CountedText(path) for path in counts]
    _compile(output, force, as_json, quiet)
    begun = time.perf_counter()
    made = merge_counts(
        parts, output, memory=memory, threads=chosen_threads(threads), force=force,
        progress=Bars(as_json, quiet), notify=notify(quiet, as_json),
    )  # fmt: skip
    _report(made, begun, quiet, as_json)


def _compile(output: str, force: bool, as_json: bool, quiet: bool) -> None:
    """Compile the kernels, once the arguments are found to be valid."""
    from snm import warmup
    from snm.storage import COUNTS, ModelWriter

    ModelWriter(output, force, kind=COUNTS)
    with compiling("count", as_json, quiet):
        warmup.compile_counting()


def _report(made: CountedText, begun: float, quiet: bool, as_json: bool) -> None:
    """Print what was written."""
    m = made.manifest
    size = sum(entry["bytes"] for entry in m["files"].values())
    if as_json:
        shown = {name: m[name] for name in ("features", "vocabulary", "text", "rows", "links")}
        print_json({"counts": str(made.path), "bytes": size, **shown})
    else:
        notify(quiet)(f"wrote {made.path}: {size / 1e6:,.1f} MB in {time.perf_counter() - begun:.1f} s")
