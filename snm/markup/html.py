"""HTML in which everything is escaped unless it is HTML already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_NO_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # not allowed in HTML
HOTTEST = 16.0  # bits: of a word in the hottest colour


class Html(str):
    """Text that is HTML."""


def as_html(value: object) -> Html:
    """A value as HTML: escaped, unless it is `Html`."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_NO_CHARACTER.sub("\ufffd", str(value)), quote=True))


def joined(parts: Iterable[object], separator: str = "") -> Html:
    return Html(separator.join(as_html(part) for part in parts))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is the attribute class, `aria_label` is aria-label; one that is None is left out."""
    named = {key.rstrip("_").replace("_", "-"): as_html(v) for key, v in attributes.items() if v is not None}
    given = "".join(f' {key}="{value}"' for key, value in named.items())
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def word(text: str) -> Html:
    """A word of a text, whose direction changes nothing around it."""
    return tag("bdi", text)


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], figures: tuple[int, int] | None = None
) -> Html:
    """A table. The first column names the row; `figures`: which columns have figures, by default all others."""
    first, last = figures or (1, len(header))
    kinds = ["figure" if first <= i < last else "long" if i >= last else None for i in range(len(header))]
    head = joined(tag("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True))
    body = [
        joined([
            tag("th", row[0], scope="row"),
            *(tag("td", value, class_=kind) for value, kind in zip(row[1:], kinds[1:], strict=True)),
        ])
        for row in rows
    ]  # fmt: skip
    lines = tag("tbody", *(tag("tr", row) for row in body))
    return tag("table", tag("caption", caption), tag("thead", tag("tr", head)), lines)


def properties(name: str, rows: Iterable[tuple[str, object]]) -> Html:
    """Names and values, one a row, under a heading: what a notebook shows of an object."""
    lines = joined(
        tag(
            "tr",
            tag("th", key, scope="row", style="text-align:left;vertical-align:top;font-weight:600"),
            tag("td", value, style="text-align:left;overflow-wrap:anywhere"),
        )
        for key, value in rows
    )
    return tag("table", tag("caption", name, style="text-align:left;font-weight:700"), tag("tbody", lines))


def heat(bits: float) -> float:
    """How hot the colour of a word is, from 0 to 1."""
    return round(min(1.0, max(0.0, bits / HOTTEST)), 3)
