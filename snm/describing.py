"""What a manifest says of a model, for a person: names and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snm import manifest


def describe(m: dict[str, Any], path: Path) -> list[tuple[str, str]]:
    """The rows of `snm info` for the manifest of a model."""
    kinds = {
        "mixture": _mixture_rows, "sources": _sources_rows, "hybrid": _sources_rows, "hsme": _network_rows,
        "rnn": _network_rows,
    }  # fmt: skip
    with manifest.opening(path):
        rows = [*kinds.get(m["kind"], _model_rows)(m), ("size", _size_text(m))]
        if "tokenizer" in m:
            rows.append(("tokenizer", _tokenizer_text(m)))
    return [*rows, ("written by", f"{m['written_by']}, format {m['version']}")]


def _tokenizer_text(m: dict[str, Any]) -> str:
    kind, sha256 = m["tokenizer"]["kind"], m["tokenizer"]["sha256"]
    has_file = any(name.startswith("tokenizer.") for name in m["files"])
    return f"{kind}, SHA-256 {sha256[:12]}" if has_file else kind


def _size_text(m: dict[str, Any]) -> str:
    size = sum(entry["bytes"] for entry in m["files"].values())
    count, what = manifest.size_of(m)
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
        return [
            *rows,
            ("estimation", ", ".join(f"{name} {_rounded(value)}" for name, value in m["estimation"].items())),
        ]
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


def _rounded(value: Any) -> str:
    """A value of the manifest, whose numbers are those of a computation, to be read."""
    if isinstance(value, list):
        return f"[{', '.join(map(_rounded, value))}]" if value else "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def shape_text(shape: dict[str, Any]) -> str:
    """One line that describes a network."""
    parts = [f"{shape['cell'].upper()} of {shape['hidden']:,} units"] if shape["hidden"] else []
    if shape["order"]:
        parts.append(f"maximum entropy over hashed n-gram features up to order {shape['order']}")
    output = {"tree": "a tree of binary decisions", "adaptive": "an adaptive softmax"}.get(
        shape["softmax"], "a softmax over classes and their words"
    )
    return f"{' with '.join(parts)}, {output}"
