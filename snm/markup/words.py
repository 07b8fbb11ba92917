"""Words coloured by their surprisal, with what made them probable on hover: what a notebook shows of explanations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from snm.markup.html import Html, as_html, heat, joined, tag, word

_STYLE = """
.snm-words{line-height:2;overflow-wrap:anywhere}
.snm-word{position:relative;display:inline-block;padding:0 .3em;margin:0 .05em;border-radius:.3em;color:#1d1c1a;
cursor:help;line-height:1.6}
.snm-word>span{display:none;position:absolute;left:0;top:100%;z-index:10;width:max-content;max-width:22em;
padding:.4em .6em;border:1px solid #777;border-radius:.4em;background:#fff;color:#1d1c1a;
font-size:.85em;line-height:1.4}
.snm-word:hover>span,.snm-word:focus>span{display:block}
.snm-word>span>i{display:block;height:.45em;background:#1f5fae;border-radius:.1em}
"""
_COLD, _HOT = (247, 245, 240), (240, 140, 50)


class Share(NamedTuple):
    """What one feature brings to a word."""

    feature: str
    share: float  # of the word's probability, from 0 to 1
    source: str | None = None


def coloured(words: Iterable[tuple[str, float, Sequence[Share]]], shown: int = 6) -> Html:
    """Words with their probabilities and their shares, the largest first; `shown` shares of each word."""
    parts = joined((_word(*one, shown) for one in words), "\n")
    return joined([tag("style", Html(_STYLE)), tag("div", parts, class_="snm-words")])


def _word(text: str, probability: float, shares: Sequence[Share], shown: int) -> Html:
    bits = -math.log2(probability) if probability > 0 else math.inf
    lines = [
        joined([
            word(f"{share.feature}{f' · {share.source}' if share.source else ''}"), f" {share.share:.1%}",
            tag("i", style=f"width:{100 * min(1.0, share.share):.1f}%"),
        ])
        for share in shares[:shown]
    ]  # fmt: skip
    if len(shares) > shown:
        lines.append(as_html(f"{len(shares) - shown} more {sum(share.share for share in shares[shown:]):.1%}"))
    about = f"P = {probability:.3g}, {bits:.1f} bits" if shares else f"P = {probability:.3g}"
    hot = heat(bits)
    colour = ",".join(str(round(a + (b - a) * hot)) for a, b in zip(_COLD, _HOT, strict=True))
    return tag(
        "span", word(text), tag("span", about, Html("<br>"), joined(lines), role="tooltip"), class_="snm-word",
        style=f"background:rgb({colour})", tabindex="0",
    )  # fmt: skip
