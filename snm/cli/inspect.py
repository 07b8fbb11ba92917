"""Commands that inspect a model: info, verify."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from snm.cli.bars import Bars
from snm.cli.options import (
    Number,
    import_option,
    json_option,
    load_model,
    model_argument,
    on_error_option,
    print_json,
)
from snm.cli.terminal import notify


@click.command()
@model_argument
@json_option
def info(path: str, as_json: bool) -> None:
    """Describe MODEL: features, size, training."""
    from snm import manifest

    m = manifest.read(Path(path)) if os.path.isdir(path) else load_model(path).manifest
    if as_json:
        print_json(m)
        return
    kinds = {
        "mixture": _mixture_rows, "sources": _sources_rows, "hybrid": _sources_rows, "hsme": _network_rows,
        "rnn": _network_rows,
    }  # fmt: skip
    describe = kinds.get(m["kind"], _model_rows)
    with manifest.opening(Path(path)):
        rows = [*describe(m), ("size", _size_text(m))]
    if "tokenizer" in m:
        rows.append(("tokenizer", _tokenizer_text(m)))
    rows.append(("written by", f"{m['written_by']}, format {m['version']}"))
    for name, value in rows:
        click.echo(f"{name:<13} {value}")


def _tokenizer_text(m: dict[str, Any]) -> str:
    kind, sha256 = m["tokenizer"]["kind"], m["tokenizer"]["sha256"]
    has_file = any(name.startswith("tokenizer.") for name in m["files"])
    return f"{kind}, SHA-256 {sha256[:12]}" if has_file else kind


def _size_text(m: dict[str, Any]) -> str:
    from snm.manifest import size_of

    size = sum(entry["bytes"] for entry in m["files"].values())
    count, what = size_of(m)
    return f"{size:,} bytes, {size / count:.1f} a {what.removesuffix('s')}"


def _mixture_rows(m: dict[str, Any]) -> list[tuple[str, str]]:
    parts = zip(m["members"], m["weights"], m["dev_perplexities"], strict=True)
    rows = [(name, f"weight {w:.4f}, held-out perplexity alone {ppl:.2f}") for name, w, ppl in parts]
    return [*rows, ("mixed", f"held-out perplexity {m['dev_perplexity']:.2f}")]


def _sources_rows(m: dict[str, Any]) -> list[tuple[str, str]]:
    words = f"{m['vocabulary']['words']:,} words, {'closed' if m['vocabulary']['closed'] else 'open'}"
    rows = [
        ("sources" if m["kind"] == "sources" else "members", ", ".join(m["names"])),
        ("vocabulary", words),
        ("links", f"{m['links']:,} feature-target pairs"),
    ]
    gate = m["gate"]
    if gate is not None:
        steps = f"held-out perplexity {gate['ungated']:.2f} → {min(gate['perplexities']):.2f}"
        rows.append(("gate", f"{gate['units']} units, learned on {gate['events']:,} tokens, {steps}"))
    return rows


def _network_rows(m: dict[str, Any]) -> list[tuple[str, str]]:
    from snm.baselines.neural.model import shape_text

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
    if "pruning" in m:
        rows.append(("made smaller", f"by {m['pruning']['criterion']}; it had {m['pruning']['links']:,} links"))
    if "estimation" in m:
        return [*rows, ("estimation", ", ".join(f"{name} {value}" for name, value in m["estimation"].items()))]
    t = m["training"]
    marks = f"{m['pages']['shadowed']} features share page and mark with another"
    rows.append(("weights", f"{8 * m['pages']['code_bytes']} bits; {marks}"))
    rows.append(("loss", f"{t['loss']}, {t['optimiser']} at {t['rate']}, kept pass {t['best_pass']}"))
    rows.append(("metafeatures", f"{len(t['metafeatures'].split(','))} conjunctions, {t['slots']:,} slots"))
    gate = m["gate"]
    if gate is not None:
        steps = f"held-out perplexity {gate['ungated']:.2f} → {min(gate['perplexities']):.2f}"
        folds = f" in {gate['folds']} folds" if gate.get("folds") else ""
        rows.append(("gate", f"{gate['units']} units, learned on {gate['events']:,} tokens{folds}, {steps}"))
    if t["prune"] > 1:
        rows.append(("pruned", f"features seen fewer than {t['prune']} times, except n-grams of up to five words"))
    return rows


@click.command()
@model_argument
@click.argument("text", nargs=-1)
@click.option("--contexts", type=Number(1), default=1000, show_default=True, help="Contexts to check.")
@on_error_option
@import_option
@json_option
def verify(path: str, text: tuple[str, ...], contexts: int, on_error: str, as_json: bool) -> None:
    """Check MODEL: checksums, rows and row sums, and that probabilities sum to one.

    P(w | h) is summed over all words w for contexts h of TEXT or, without TEXT, of sentences sampled from the model.
    """
    from snm.evaluation import verify as check

    report = check(
        path, text, contexts=contexts, on_error=on_error, progress=Bars(as_json), notify=notify(as_json=as_json)
    )
    if as_json:
        print_json(asdict(report))
        return
    click.echo("checksums, rows and links are correct")
    click.echo(
        f"in {report.contexts:,} contexts ({report.at_start} sentence starts, {report.with_unknown} with <UNK>), "
        f"the sum of all probabilities differs from 1 by at most {report.worst:.1e}"
    )
