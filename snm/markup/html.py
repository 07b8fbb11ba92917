"""HTML in which everything is escaped unless it is HTML already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

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
    """An element. `class_` is the attribute class, `aria_label` is aria-label; an attribute that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{as_html(value)}"' for key, value in attributes.items() if value is not None
    )
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def word(text: str) -> Html:
    """A word of a text, whose direction changes nothing around it."""
    return tag("bdi", text)


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], figures: int = 1, **attributes: Any
) -> Html:
    """A table. The columns from number `figures` on have figures, the first column is the name of the row."""
    kinds = [None if i < figures else "figure" for i in range(len(header))]
    head = joined(tag("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True))
    body = [
        joined([
            tag("th", row[0], scope="row"),
            *(tag("td", value, class_=kind) for value, kind in zip(row[1:], kinds[1:], strict=True)),
        ])
        for row in rows
    ]  # fmt: skip
    return tag(
        "table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", *(tag("tr", row) for row in body)),
        **attributes,
    )  # fmt: skip


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
