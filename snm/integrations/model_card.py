"""The card of a model: what README.md of its repository says, for people and, at its head in YAML, for the Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snm.arguments import real_number, shown
from snm.describing import describe
from snm.errors import SettingsError
from snm.model import LanguageModel, PerplexityReport

KINDS = {
    "snm": "Sparse non-negative matrix language model",
    "backoff": "Backoff n-gram language model",
    "hsme": "Hierarchical maximum-entropy language model",
    "rnn": "Recurrent neural language model",
    "mixture": "Linear mixture of language models",
    "sources": "Sparse non-negative matrix language model of several sources",
    "hybrid": "Mixture of language models, gated by context",
}
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")

Figures = Mapping[str, float | PerplexityReport]


def model_card(
    model: LanguageModel, name: str, *, perplexities: Figures | None = None, license: str | None = None,
    languages: Sequence[str] = (),
) -> str:  # fmt: skip
    """The card of a model that is published as `owner/name`.

    `perplexities`: of texts, by their names; numbers, or reports of `model.perplexity`. `license`: that of the training
    text, an identifier such as cc-by-sa-4.0, or in words. `languages`: their codes, such as en.
    """
    figures = {_plain(text): _figure(text, value) for text, value in (perplexities or {}).items()}
    for language in languages:
        if not isinstance(language, str) or not _LANGUAGE.fullmatch(language):
            raise SettingsError(f"language {shown(language)}; expected a code such as en")
    if license is not None and (not isinstance(license, str) or not _plain(license)):
        raise SettingsError(f"license is {shown(license)}; expected that of the training text, such as cc-by-sa-4.0")
    license = license and _plain(license)
    parts = [
        _head(name, figures, license, languages),
        f"# {name.rpartition('/')[2]}\n\n{KINDS[model.manifest['kind']]}, made with SNM.\n",
        _use(name),
        _perplexities(figures) if figures else "",
        _table("Model", ["", ""], describe(model.manifest, Path(model.path))),
        _training(model.manifest),
        f"## License\n\nThe training text: {license or 'not stated'}.\n",
    ]
    return "\n".join(part for part in parts if part)


def _figure(text: str, value: float | PerplexityReport) -> float | PerplexityReport:
    return value if isinstance(value, PerplexityReport) else real_number(f"the perplexity of {text}", value)


def _head(name: str, figures: Figures, license: str | None, languages: Sequence[str]) -> str:
    """The front matter: an entry a line. JSON is YAML."""
    entries: dict[str, Any] = {"library_name": "snm", "pipeline_tag": "text-generation"}
    if license is not None:
        known = _LICENSE.fullmatch(license)
        entries |= {"license": license} if known else {"license": "other", "license_name": license}
    if languages:
        entries["language"] = list(languages)
    entries["tags"] = ["snm", "language-model", "n-gram"]
    if figures:
        entries["model-index"] = [{"name": name.rpartition("/")[2], "results": [*map(_result, figures.items())]}]
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items())
    return f"---\n{''.join(lines)}---\n"


def _result(measured: tuple[str, float | PerplexityReport]) -> dict[str, Any]:
    text, figure = measured
    return {
        "task": {"type": "text-generation", "name": "Language modeling"},
        "dataset": {"type": "text", "name": text},
        "metrics": [{"type": "perplexity", "value": round(_ppl(figure), 3)}],
    }


def _ppl(figure: float | PerplexityReport) -> float:
    return figure.ppl if isinstance(figure, PerplexityReport) else figure


def _use(name: str) -> str:
    return f"""## Use

    pip install 'snm[hub]'

```python
import snm

model = snm.from_pretrained("{name}")
model.score("a sentence")  # log10 probability
model.next_words("some words", k=5)
```
"""


def _perplexities(figures: Figures) -> str:
    rows = []
    for text, f in figures.items():
        more = ["", "", "", ""]
        if isinstance(f, PerplexityReport):
            bits = "" if f.bits_per_byte is None else f"{f.bits_per_byte:.3f}"
            more = [f"{f.ppl_no_oov:.2f}", f"{f.oov_rate:.2%}", bits, f"{f.tokens:,}"]
        rows.append((text, f"{_ppl(f):.2f}", *more))
    table = _table("Perplexity", ["text", "perplexity", "without OOVs", "OOVs", "bits a byte", "tokens"], rows)
    return f"{table}\nSentence ends are counted. OOVs, words outside the vocabulary, count as `<UNK>`.\n"


def _training(m: dict[str, Any]) -> str:
    """The settings that the manifest has, without the course of the training."""
    settings = {k: v for k, v in m.get("training", {}).items() if not isinstance(v, list | dict)}
    return f"## Training settings\n\n```json\n{json.dumps(settings, indent=1)}\n```\n" if settings else ""


def _table(title: str, head: list[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    body = "".join(f"| {' | '.join(_plain(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    return f"## {title}\n\n{body}"


def _plain(text: str) -> str:
    """A text on one line, without control characters."""
    return "".join(c for c in " ".join(str(text).split()) if c.isprintable())
