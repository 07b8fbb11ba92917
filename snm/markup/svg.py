"""Charts as SVG. Colours are classes, so that a page chooses them; a file of its own has a style."""

from __future__ import annotations

import unicodedata

from snm.markup.charts import Bars, Chart, Intervals, Lines, short, ticks
from snm.markup.html import Html, as_html, joined, tag

WIDTH = 400
LABELS = 150  # columns of labels are at most this wide
CHARACTER, LINE, BAR = 8.3, 18, 13
STYLE = """
svg.chart{background:#fff}.chart text{font:13px system-ui,sans-serif;fill:#1d1c1a}.chart .quiet{fill:#5d5a54}
.chart .title{font-weight:600}.chart .axis{stroke:#d9d4ca;fill:none}.chart path{fill:none}
.s0{fill:#1f5fae;stroke:#1f5fae}.s1{fill:#b3530f;stroke:#b3530f}.s2{fill:#14775c;stroke:#14775c}
.s3{fill:#7a3fa8;stroke:#7a3fa8}.s4{fill:#8d6a00;stroke:#8d6a00}.s5{fill:#5d5a54;stroke:#5d5a54}
"""
COLOURS = 6


def draw(chart: Chart, title: bool = False) -> Html:
    """A chart as an element of a page. `title`: whether its title is drawn too."""
    kinds = {Bars: _bars, Lines: _lines, Intervals: _intervals}
    parts, height = kinds[type(chart)](chart, LINE + 4 if title else 0)  # type: ignore[operator]
    head = [_text(0, LINE - 4, chart.title, class_="title")] if title else []
    return tag(
        "svg", *head, *parts, class_="chart", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height:.0f}",
        width=str(WIDTH), height=f"{height:.0f}", role="img", aria_label=chart.title,
    )  # fmt: skip


def picture(charts: list[Chart]) -> str:
    """Charts as an SVG file, one below the other."""
    at, parts = 10.0, []
    for chart in charts:
        drawn, height = draw(chart, title=True), height_of(chart)
        parts.append(tag("g", drawn, transform=f"translate(10 {at:.0f})"))
        at += height + 20
    size = f'width="{WIDTH + 20}" height="{at:.0f}" viewBox="0 0 {WIDTH + 20} {at:.0f}"'
    whole = joined([tag("style", Html(STYLE)), Html('<rect width="100%" height="100%" fill="#fff"/>'), *parts], "\n")
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{whole}</svg>\n'


def height_of(chart: Chart) -> float:
    kinds = {Bars: _bars, Lines: _lines, Intervals: _intervals}
    height: float = kinds[type(chart)](chart, LINE + 4)[1]  # type: ignore[operator]
    return height


def _text(x: float, y: float, text: str, anchor: str | None = None, class_: str | None = None) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=class_)


def width_of(text: str) -> float:
    """About how wide a text is."""
    return CHARACTER * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _cut(text: str, width: float) -> str:
    """The beginning of a text, of at most this width."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - CHARACTER:
        text = text[:-1]
    return f"{text}…"


def _label(y: float, text: str, width: float) -> Html:
    cut = _cut(text, width)
    full = tag("title", text) if cut != text else ""
    return tag("text", full, cut, x=f"{width:.1f}", y=f"{y:.1f}", text_anchor="end")


def _legend(names: list[str], y: float) -> tuple[list[Html], float]:
    """Squares and names of the series, if there are several; and where they end."""
    if len(names) < 2:
        return [], y
    parts, x = [], 0.0
    for i, name in enumerate(names):
        name = _cut(name, WIDTH - 20)
        if x and x + 18 + width_of(name) > WIDTH:
            x, y = 0.0, y + LINE
        parts.append(_rect(x, y + 2, 11, 11, i))
        parts.append(_text(x + 16, y + 12, name))
        x += 30 + width_of(name)
    return parts, y + LINE + 4


def _rect(x: float, y: float, width: float, height: float, series: int) -> Html:
    how = f'x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width):.1f}" height="{height:.1f}"'
    return Html(f'<rect class="s{series % COLOURS}" stroke="none" {how}/>')


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str = "axis", width: float = 1) -> Html:
    how = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{width}"'
    return Html(f'<line class="{kind}" {how}/>')


def _bars(chart: Bars, top: float) -> tuple[list[Html], float]:
    names = list(chart.series)
    parts, y = _legend(names, top)
    labels = min(LABELS, max((width_of(label) for label in chart.labels), default=0.0))
    beside = max((width_of(chart.text(n, i)) for n in names for i in range(len(chart.labels))), default=0.0)
    room = max(60.0, WIDTH - labels - 8 - beside - 6)
    for i, label in enumerate(chart.labels):
        middle = y + len(names) * BAR / 2 + 5
        parts.append(_label(middle, label, labels))
        for s, name in enumerate(names):
            value = chart.series[name][i]
            length = 0.0 if value is None else room * max(0.0, value) / chart.largest
            if value is not None:
                parts.append(_rect(labels + 8, y + 1, length, BAR - 2, s))
            parts.append(_text(labels + 12 + length, y + BAR - 2, chart.text(name, i), class_="quiet"))
            y += BAR
        y += 7
    if chart.unit:
        parts.append(_text(labels + 8, y + 10, chart.unit, class_="quiet"))
        y += LINE
    return parts, y


def _lines(chart: Lines, top: float) -> tuple[list[Html], float]:
    parts, y = _legend(list(chart.series), top)
    x0, x1, low, high = chart.edges
    margin = (high - low) / 12 or abs(high) / 12 or 1.0
    low, high = low - margin, high + margin
    left = 8 + max(width_of(short(tick)) for tick in ticks(low, high))
    upper, lower, right = y + 8, y + 178, WIDTH - 14.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x0) / (x1 - x0) if x1 > x0 else 0.5
        return left + 6 + across * (right - left - 6), lower - (point[1] - low) / (high - low) * (lower - upper)

    for tick in ticks(low, high):
        at = place((x0, tick))[1]
        parts += [_rule(left, at, right, at), _text(left - 6, at + 4, short(tick), "end", "quiet")]
    for tick in ticks(x0, x1, 7):
        parts.append(_text(place((tick, low))[0], lower + 15, short(tick), "middle", "quiet"))
    for s, points in enumerate(chart.series.values()):
        places = [place(point) for point in points]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(tag("path", d=f"M{path}", class_=f"s{s % COLOURS}", style="fill:none", stroke_width="2"))
        for (x, y_), point in zip(places, points, strict=True):
            about = tag("title", f"{short(point[0])}: {point[1]:,.4g}")
            parts.append(tag("circle", about, cx=f"{x:.1f}", cy=f"{y_:.1f}", r="3", class_=f"s{s % COLOURS}"))
    text = " · ".join(part for part in (chart.y and f"↑ {chart.y}", chart.x and f"→ {chart.x}") if part)
    parts.append(_text(left, lower + 33, text, class_="quiet"))
    return parts, lower + 40


def _intervals(chart: Intervals, top: float) -> tuple[list[Html], float]:
    low, high = chart.edges
    labels = min(LABELS, max(width_of(label) for label in chart.rows))
    left, right, y = labels + 14.0, WIDTH - 16.0, top

    def place(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    parts, bottom = [], y + 30 * len(chart.rows)
    for tick in ticks(low, high, 6):
        parts.append(_rule(place(tick), y, place(tick), bottom))
        parts.append(_text(place(tick), bottom + 15, short(tick), "middle", "quiet"))
    if chart.reference is not None:
        parts.append(_rule(place(chart.reference), y, place(chart.reference), bottom, "s5", 1.5))
    for i, (label, (a, value, b)) in enumerate(chart.rows.items()):
        kind = f"s{(i + chart.first) % COLOURS}"
        at = y + 30 * i + 15
        about = tag("title", as_html(f"{label}: {value:,.4g} ({a:,.4g} to {b:,.4g})"))
        parts += [
            _label(at + 4, label, labels), _rule(place(a), at, place(b), at, kind, 3),
            tag("circle", about, cx=f"{place(value):.1f}", cy=f"{at:.1f}", r="5", class_=kind),
        ]  # fmt: skip
    parts.append(_text(left, bottom + 33, chart.unit, class_="quiet"))
    return parts, bottom + 40
