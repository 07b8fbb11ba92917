"""Commands for the Hugging Face Hub: push, pull."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from snm.cli.bars import Bars
from snm.cli.options import chosen_threads, import_option, load_model, model_argument, on_error_option, threads_option
from snm.cli.terminal import notify
from snm.errors import InputError


@click.command()
@model_argument
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--text", "texts", multiple=True, help="Test text whose perplexity the card gives.")
@click.option("--license", metavar="ID", help="License of the training text, such as cc-by-sa-4.0, for the card.")
@click.option("--language", "languages", multiple=True, metavar="CODE", help="Language of the text, such as en.")
@click.option("--card", type=click.File(encoding="utf-8"), help="File with the card.  [default: a generated one]")
@click.option("--private", is_flag=True, help="Only the owner sees the repository, if it is a new one.")
@click.option("--dry-run", is_flag=True, help="Print the card, and upload nothing.")
@on_error_option
@threads_option
@import_option
def push(
    path: str, repository: str, texts: tuple[str, ...], license: str | None, languages: tuple[str, ...],
    card: IO[str] | None, private: bool, dry_run: bool, on_error: str, threads: int | None,
) -> None:  # fmt: skip
    """Upload MODEL to the repository OWNER/NAME of the Hugging Face Hub, with a model card.

    The card, README.md, says what the model is, how it was trained and how to load it. A repository that does not exist
    is made. Log in first, with `hf auth login` or the environment variable HF_TOKEN. A model holds words of its
    training text, and what often follows them: publish none whose text may not be published.
    """
    from snm.integrations.hub import client, push_to_hub, repository_name
    from snm.integrations.model_card import model_card

    repository_name(repository)
    if not dry_run:
        client("uploading a model")  # or an error, before long work
    model = load_model(path)
    written = _read(card)
    if written is None:
        figures = {
            Path(text).name: model.perplexity(Path(text), threads=chosen_threads(threads), on_error=on_error)
            for text in texts
        }
        written = model_card(model, repository, perplexities=figures, license=license, languages=languages)
    if dry_run:
        click.echo(written, nl=False)
        return
    address = push_to_hub(model, repository, card=written, private=private, progress=Bars())
    notify()(f"uploaded to {address}")


def _read(card: IO[str] | None) -> str | None:
    if card is None:
        return None
    try:
        return card.read()
    except UnicodeDecodeError:
        raise InputError(f"{card.name} is not UTF-8; expected a model card in Markdown") from None


@click.command()
@click.argument("repository", metavar="OWNER/NAME")
@click.option("-o", "--output", required=True, help="Folder of the model to write.")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit.  [default: main]")
@click.option("--force", is_flag=True, help="Replace a model of that name.")
@import_option
def pull(repository: str, output: str, revision: str | None, force: bool) -> None:
    """Download the model OWNER/NAME from the Hugging Face Hub, and verify its checksums.

    It is kept in the Hub's cache too, with which it shares its files where the disk has hard links. For private models
    log in first, with `hf auth login` or the environment variable HF_TOKEN.
    """
    from snm.integrations.hub import pull as run

    model = run(repository, output, revision=revision, force=force, progress=Bars(), notify=notify())
    size = sum(entry["bytes"] for entry in model.manifest["files"].values())
    notify()(f"wrote {output}: {len(model.vocabulary):,} words, {size:,} bytes")
