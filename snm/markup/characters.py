"""Charts as lines of characters, for a terminal or a pipe."""

from __future__ import annotations

import unicodedata

from snm.markup.charts import Bars, Chart, Intervals, Lines, short

PARTS = " ▏▎▍▌▋▊▉█"  # eighths of a character
FILLS = "█▒░▓"  # of series after the first, whole characters
PLAIN_FILLS = "#=-:"  # where the terminal has ASCII alone
HEIGHT = 8  # lines of characters of a chart of lines
NARROWEST = 24


def draw(chart: Chart, columns: int, plain: bool = False) -> list[str]:
    """The lines of a chart, at most `columns` wide. `plain`: in ASCII."""
    columns = max(NARROWEST, columns)
    kinds = {Bars: _bars, Lines: _lines, Intervals: _intervals}
    made = [chart.title, *kinds[type(chart)](chart, columns, plain)]  # type: ignore[operator]
    made = [cut(line, columns).rstrip() for line in made]
    return [line.translate(_ASCII).encode("ascii", "replace").decode() for line in made] if plain else made


_ASCII = str.maketrans("–…∞→↑│─●├┤·█▒░▓", "-.i>^|-o||.#=-:")


def width_of(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )  # fmt: skip


def cut(text: str, columns: int) -> str:
    """The beginning of a text, of at most so many columns, without control characters."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    if width_of(text) <= columns:
        return text
    while text and width_of(text) > columns - 1:
        text = text[:-1]
    return f"{text}…"


def padded(text: str, columns: int, right: bool = False) -> str:
    text = cut(text, columns)
    space = " " * (columns - width_of(text))
    return space + text if right else text + space


def _bars(chart: Bars, columns: int, plain: bool) -> list[str]:
    names = list(chart.series)
    fills = PLAIN_FILLS if plain else FILLS
    lines = []
    if len(names) > 1:
        lines.append("  ".join(f"{fills[s % len(fills)]} {name}" for s, name in enumerate(names)))
    labels = min(columns // 3, max((width_of(label) for label in chart.labels), default=0))
    beside = max((width_of(chart.text(n, i)) for n in names for i in range(len(chart.labels))), default=0)
    room = max(4, columns - labels - beside - 3)
    for i, label in enumerate(chart.labels):
        for s, name in enumerate(names):
            value = chart.series[name][i]
            length = 0.0 if value is None else room * max(0.0, value) / chart.largest
            bar = _bar(length, s, plain)
            lines.append(f"{padded('' if s else label, labels)} {bar} {chart.text(name, i)}")
    return [*lines, chart.unit] if chart.unit else lines


def _bar(length: float, series: int, plain: bool) -> str:
    """A bar of so many characters; the first series has bars to an eighth of a character."""
    fills = PLAIN_FILLS if plain else FILLS
    if series or plain:
        return fills[series % len(fills)] * max(1 if length > 0 else 0, round(length))
    eighths = max(1 if length > 0 else 0, round(8 * length))
    return PARTS[8] * (eighths // 8) + (PARTS[eighths % 8] if eighths % 8 else "")


def _lines(chart: Lines, columns: int, plain: bool) -> list[str]:
    if len(chart.series) > 1:  # characters have no colours that would tell lines apart
        alone = {name: Lines(chart.title, {name: points}, chart.x, chart.y) for name, points in chart.series.items()}
        return [line for name, one in alone.items() for line in (f"{name}:", *_lines(one, columns, plain))]
    x0, x1, low, high = chart.edges
    labels = max(width_of(short(low)), width_of(short(high)))
    across, down = (1, 1) if plain else (2, 4)  # dots of a character: braille
    width, height = (columns - labels - 2) * across, HEIGHT * down
    dots: set[tuple[int, int]] = set()

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = (point[0] - x0) / (x1 - x0) if x1 > x0 else 0.0
        y = (high - point[1]) / (high - low) if high > low else 0.5
        return x * (width - 1), y * (height - 1)

    for points in chart.series.values():  # one
        places = [place(point) for point in points]
        for (ax, ay), (bx, by) in zip(places, places[1:] or places, strict=False):
            steps = max(1, round(max(abs(bx - ax), abs(by - ay))))
            for k in range(steps + 1):
                dots.add((round(ax + (bx - ax) * k / steps), round(ay + (by - ay) * k / steps)))
    lines = []
    for row in range(HEIGHT):
        label = short(high) if row == 0 else short(low) if row == HEIGHT - 1 else ""
        cells = "".join(_cell(dots, column, row, plain) for column in range(width // across))
        lines.append(f"{padded(label, labels, right=True)} │{cells}")
    between = max(1, columns - labels - 2 - width_of(short(x0)) - width_of(short(x1)))
    lines.append(f"{' ' * (labels + 2)}{short(x0)}{' ' * between}{short(x1)}")
    text = " · ".join(part for part in (chart.y and f"↑ {chart.y}", chart.x and f"→ {chart.x}") if part)
    return [*lines, text]


_BRAILLE = ((0, 0, 1), (0, 1, 2), (0, 2, 4), (1, 0, 8), (1, 1, 16), (1, 2, 32), (0, 3, 64), (1, 3, 128))


def _cell(dots: set[tuple[int, int]], column: int, row: int, plain: bool) -> str:
    if plain:
        return "*" if (column, row) in dots else " "
    dot = sum(bit for x, y, bit in _BRAILLE if (2 * column + x, 4 * row + y) in dots)
    return chr(0x2800 + dot) if dot else " "


def _intervals(chart: Intervals, columns: int, plain: bool) -> list[str]:
    low, high = chart.edges
    labels = min(columns // 3, max(width_of(label) for label in chart.rows))
    width = columns - labels - 1

    def place(value: float) -> int:
        return min(width - 1, max(0, round((value - low) / (high - low) * (width - 1))))

    lines = []
    for label, (a, value, b) in chart.rows.items():
        cells = [" "] * width
        if chart.reference is not None:
            cells[place(chart.reference)] = "│"
        cells[place(a) : place(b) + 1] = ["─"] * (place(b) + 1 - place(a))
        cells[place(a)], cells[place(b)], cells[place(value)] = "├", "┤", "●"
        lines.append(f"{padded(label, labels)} {''.join(cells)}")
    left, right = short(low), short(high)
    lines.append(f"{' ' * (labels + 1)}{left}{' ' * max(1, width - width_of(left) - width_of(right))}{right}")
    return [*lines, chart.unit] if chart.unit else lines
