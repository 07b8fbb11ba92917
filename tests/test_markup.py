"""HTML, charts as SVG, as characters and as files."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.errors import MissingExtra, SettingsError
from snm.markup import characters, files, svg
from snm.markup.charts import Bars, Chart, Intervals, Lines, short, ticks
from snm.markup.html import Html, as_html, joined, properties, table, tag
from snm.markup.words import Share, coloured

HOSTILE = "<script>alert('x')</script>", '"><img src=x onerror=alert(1)>', "a&b", "\u202eabc", "\x00\x1b[31m", "\ud800"
numbers = st.floats(-1e6, 1e9) | st.integers(-5, 5).map(float)
labels = st.text(max_size=30) | st.sampled_from(HOSTILE)
bars = st.builds(
    lambda title, rows: Bars(title, [name for name, _ in rows], {"a": [v for _, v in rows], "b": [1.0] * len(rows)}),
    labels,
    st.lists(st.tuples(labels, st.none() | numbers), max_size=6),
)
lines = st.builds(
    lambda title, name, points: Lines(title, {name: points, "b": [(0.0, 1.0)]}, "x", name),
    labels,
    labels.filter(lambda name: name != "b"),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8).map(sorted),
)
intervals = st.builds(
    lambda title, rows, zero: Intervals(title, rows, "unit", 0.0 if zero else None),
    labels,
    st.dictionaries(labels, st.tuples(numbers, numbers, numbers).map(lambda row: tuple(sorted(row))), min_size=1),
    st.booleans(),
)
charts = bars | lines | intervals


class Tags(HTMLParser):
    """The names of the elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


@given(text=labels)
def test_text_is_escaped_everywhere(text: str) -> None:
    made = tag("p", text, tag("b", text), title=text, data_x=None)
    read = Tags(made + table(text, [text, "x"], [[text, 1]]) + properties(text, [(text, text)]))
    read.feed(coloured([(text, 0.5, [Share(text, 0.1, text)] * 9)]))
    known = {"p", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "style", "div", "span", "bdi", "i", "br"}
    assert read.names == known
    assert read.attributes <= {"title", "scope", "class", "style", "role", "tabindex"}
    made.encode()


def test_html_stays_as_it_is() -> None:
    assert as_html(Html("<b>")) == "<b>"
    assert joined(["<", Html("<i>"), 3]) == "&lt;<i>3"
    assert tag("td", "a\x00b", class_="x y", aria_label=None) == '<td class="x y">a\ufffdb</td>'


def test_coloured_words_say_what_made_them() -> None:
    shares = [Share(f"[{i}]", 0.1) for i in range(8)]
    shown = coloured([("cat", 0.25, shares), ("never", 0.0, [])])
    assert "2.0 bits" in shown
    assert "2 more 20.0%" in shown
    assert "[6]" not in shown


@given(chart=charts)
def test_any_chart_is_well_formed_svg(chart: Chart) -> None:
    read = ElementTree.fromstring(svg.picture([chart, chart]))
    names = {element.tag.split("}")[1] for element in read.iter()}
    assert names <= {"svg", "style", "rect", "g", "text", "title", "line", "path", "circle"}
    names = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "d"}
    places = [value for element in read.iter() for name, value in element.attrib.items() if name in names]
    assert not any("nan" in place or "inf" in place for place in places)


@given(chart=charts, columns=st.integers(24, 120), plain=st.booleans())
def test_any_chart_fits_into_a_terminal(chart: Chart, columns: int, plain: bool) -> None:
    drawn = characters.draw(chart, columns, plain)
    assert all(characters.width_of(line) <= columns for line in drawn)
    assert all(line.isprintable() for line in drawn)
    assert not plain or "".join(drawn).isascii()


def test_bars_are_as_long_as_their_values() -> None:
    chart = Bars("title", ["a", "b", "c"], {"x": [8.0, 4.0, None]})
    first, second, third = characters.draw(chart, 59)[1:]
    assert first.count("█") == 2 * second.count("█")
    assert third == "c  –"
    assert characters.draw(chart, 60, plain=True)[1].startswith("a ####")


def test_lines_rise_from_left_to_right() -> None:
    drawn = characters.draw(Lines("title", {"x": [(0.0, 1.0), (10.0, 5.0)]}, "pass", "loss"), 40)
    assert drawn[1].startswith("5 │")
    assert drawn[1].rstrip()[-1] != "│"
    assert drawn[8][3] != " "
    assert drawn[9].split() == ["0", "10"]
    both = characters.draw(Lines("t", {"up": [(0.0, 1.0)], "down": [(0.0, 1.0)]}), 40)
    assert [line for line in both if line.endswith(":")] == ["up:", "down:"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3, "3"), (1234.5, "1,234"), (12345, "12.3 k"), (4.5e6, "4.5 M"), (2e9, "2.0 G"), (0.0123, "0.012")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text
    assert short(math.inf) == "∞"


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low: float, size: float) -> None:
    found = ticks(low, low + size)
    assert 1 <= len(found) <= 7
    assert all(low - size / 100 <= tick <= low + size * 1.01 for tick in found)


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    made: list[Chart] = [
        Bars("$bars$", ["a", "b"], {"x": [1.0, None], "y": [2.0, 3.0]}),
        Lines("lines", {"x": [(0.0, 1.0), (1.0, 2.0)], "y": [(0.0, 2.0)]}),
        Intervals("intervals", {"a": (1.0, 2.0, 3.0)}, reference=0.0),
    ]
    for name, begins in (("a.svg", b"<svg"), ("a.png", b"\x89PNG")):
        files.write(made, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
    with pytest.raises(SettingsError, match=r"ends in \.svg or \.png"):
        files.write(made, tmp_path / "a.jpg")


def test_a_png_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="an SVG needs nothing"):
        files.check(tmp_path / "a.png")
    assert files.check(tmp_path / "a.svg") == tmp_path / "a.svg"
