"""Draws the pictures of docs/concepts: `make docs`. A test keeps them up to date."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from snm.markup.html import Html, joined, tag

FOLDER = Path(__file__).parent / "concepts"
WIDTH = 720
STYLE = """
rect.back{fill:#fff}text{font:15px system-ui,sans-serif;fill:#1d1c1a}.small{font-size:13px}.quiet{fill:#5d5a54}
.mono{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:14px}.bold{font-weight:600}.white{fill:#fff}
.remote{fill:#b3530f}.adjacent{fill:#1f5fae}.class{fill:#14775c}.target{fill:#1d1c1a}.line{fill:none;stroke:#8a857c;
stroke-width:1.5}
.hole{fill:#fff;stroke:#b3530f;stroke-width:1.5;stroke-dasharray:4 3}
.box{fill:#f4f1ea;stroke:#d9d4ca}.mark{fill:#fff3d6}
"""
MIDDLE = "middle"


class Picture:
    """An SVG file."""

    def __init__(self, height: float, title: str) -> None:
        self.height, self.title = height, title
        self.parts: list[Html] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str | None = None) -> None:
        self.parts.append(tag("text", text, x=f"{x:.0f}", y=f"{y:.0f}", class_=kind or None, text_anchor=anchor))

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", opacity: float = 1.0) -> None:
        faint = f"{opacity:.2f}" if opacity < 1 else None
        size = {"width": f"{width:.0f}", "height": f"{height:.0f}"}
        self.parts.append(tag("rect", x=f"{x:.0f}", y=f"{y:.0f}", rx="4", class_=kind, fill_opacity=faint, **size))

    def label(self, x: float, y: float, width: float, text: str, kind: str, height: float = 28) -> None:
        """A box with a text in its middle."""
        self.box(x, y, width, height, kind)
        self.text(x + width / 2, y + height / 2 + 5, text, "" if kind in ("box", "hole", "mark") else "white", MIDDLE)

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        angle = math.atan2(to_y - y, to_x - x)
        tips = [(to_x - 8 * math.cos(angle + turn), to_y - 8 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
        head = " L".join(f"{a:.1f} {b:.1f}" for a, b in (tips[0], (to_x, to_y), tips[1]))
        self.parts.append(tag("path", d=f"M{x:.1f} {y:.1f} L{to_x:.1f} {to_y:.1f} M{head}", class_="line"))

    def svg(self) -> str:
        back = tag("rect", width="100%", height="100%", class_="back")
        whole = joined([tag("title", self.title), tag("style", Html(STYLE)), back, *self.parts], "\n")
        size = f'viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}" height="{self.height:.0f}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{whole}</svg>\n'


SENTENCE = ["<S>", "The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


def features() -> Picture:
    """Section 2 of the paper: features of the target `dog`."""
    rows = [
        ("n-gram", "(0, 0, 3)", range(0), range(6, 9), "[over the lazy]"),
        ("skip-gram", "(1, 2, 3)", range(3, 4), range(6, 9), "[brown skip-2 over the lazy]"),
        ("skip-gram", "(2, 3, 1)", range(3, 5), range(8, 9), "[brown fox skip-3 lazy]"),
        ("tied skip-gram", "(1, *, 1)", range(4, 5), range(8, 9), "[fox skip-* lazy]"),
        ("empty feature", "(0, 0, 0)", range(0), range(9, 9), "[]"),
    ]
    picture = Picture(90 + 62 * len(rows), "Features of one target: which words of the context each has")
    at = [10 + 71 * i for i in range(10)]
    for i, word in enumerate(SENTENCE):
        if i == 9:
            picture.label(at[i], 14, 66, word, "target")
        else:
            picture.text(at[i] + 33, 33, word, "", MIDDLE)
    for row, (name, kind, remote, adjacent, written) in enumerate(rows):
        y = 66 + 62 * row
        for i in range(9):
            if i in remote or i in adjacent:
                picture.label(at[i], y, 66, SENTENCE[i], "remote" if i in remote else "adjacent", 26)
            elif remote and remote[-1] < i < adjacent[0]:
                picture.label(at[i], y, 66, "", "hole", 26)
        picture.text(at[9] + 33, y + 18, "?", "bold", MIDDLE)
        picture.text(10, y + 18, f"{name} {kind}", "small quiet")
        picture.text(at[9] - 6, y + 45, written, "mono", "end")
    y = 66 + 62 * len(rows) + 6
    for x, kind, text in (
        (10, "remote", "r remote words"),
        (180, "hole", "s skipped"),
        (310, "adjacent", "a adjacent words"),
    ):
        picture.box(x, y, 16, 14, kind)
        picture.text(x + 24, y + 12, text, "small quiet")
    return picture


TEXT = [
    "the cat sees the dog",
    "a cat sees a fish",
    "the dog sees the fish",
    "the dog eats a fish",
    "a cat eats the fish",
]


def counts() -> tuple[list[str], list[str], Counter[tuple[str, str]], Counter[str]]:
    """Features, targets and counts of TEXT: words before the target, and the one before those."""
    links: Counter[tuple[str, str]] = Counter()
    for line in TEXT:
        words = ["<S>", *line.split()]
        for k in range(1, len(words)):
            links["[]", words[k]] += 1
            links[f"[{words[k - 1]}]", words[k]] += 1
            if k > 1:
                links[f"[{words[k - 2]} {words[k - 1]}]", words[k]] += 1
                links[f"[{words[k - 2]} skip-1]", words[k]] += 1
    totals: Counter[str] = Counter()
    for (feature, _), n in links.items():
        totals[feature] += n
    chosen = ["[]", "[the]", "[sees the]", "[sees skip-1]", "[cat]", "[eats a]"]
    return chosen, ["the", "a", "cat", "dog", "fish", "sees", "eats"], links, totals


def matrix() -> Picture:
    """Section 3: y = M f. The relative frequencies of a text of five sentences."""
    names, targets, links, totals = counts()
    active = ["[]", "[the]", "[sees the]", "[sees skip-1]"]
    picture = Picture(414, "The matrix M: rows of features, columns of targets")
    left, top, wide, high = 176, 84, 62, 36
    picture.text(10, 26, "after “… sees the”, the features in the shaded rows are present", "quiet")
    picture.text(10, 68, "feature i", "small quiet")
    for j, target in enumerate(targets):
        picture.text(left + wide * j + wide / 2, 68, target, "bold", MIDDLE)
    picture.text(left + wide * len(targets) + 50, 68, "row sum", "small quiet", MIDDLE)
    sums: Counter[str] = Counter()
    for i, name in enumerate(names):
        y = top + high * i
        if name in active:
            picture.box(6, y - 1, WIDTH - 12, high - 4, "mark")
        picture.text(14, y + 21, name, "mono")
        for j, target in enumerate(targets):
            m = links[name, target] / totals[name]
            x = left + wide * j
            if m:
                picture.box(x + 4, y + 2, wide - 8, high - 10, "adjacent", 0.12 + 0.5 * m)
                picture.text(x + wide / 2, y + 21, f"{m:.2f}", "small", MIDDLE)
            sums[target] += m * (name in active)  # type: ignore[assignment]
        picture.text(left + wide * len(targets) + 50, y + 21, "1.00", "small", MIDDLE)
    y = top + high * len(names) + 12
    rows = len(active)
    picture.text(14, y + 21, "y, the sum", "bold")
    picture.text(14, y + 57, "P = y / Σ y", "bold")
    for j, target in enumerate(targets):
        x = left + wide * j + wide / 2
        picture.text(x, y + 21, f"{sums[target]:.2f}", "", MIDDLE)
        picture.text(x, y + 57, f"{sums[target] / rows:.2f}", "bold", MIDDLE)
    picture.text(left + wide * len(targets) + 50, y + 21, f"{rows:.2f}", "", MIDDLE)
    picture.text(left + wide * len(targets) + 50, y + 57, "1.00", "", MIDDLE)
    picture.text(14, y + 84, "Here A = 0: M is C / C*. No cell that is empty is stored or looked at.", "small quiet")
    return picture


def adjustment() -> Picture:
    """Section 3.2: from a link to its entry of M."""
    picture = Picture(330, "The adjustment function: metafeatures, hashed, choose weights whose sum is A")
    picture.text(10, 26, "link: [sees the] → dog", "bold")
    elementary = ["feature  [sees the]", "type  (0, 0, 2)", "feature count  C* = 2", "target  dog", "link count  C = 1"]
    for k, text in enumerate(elementary):
        picture.label(10, 46 + 40 * k, 176, text, "box")
    picture.text(98, 268, "elementary", "small quiet", MIDDLE)
    conjunctions = ["type, C", "target, C", "feature", "type, C*, C", "feature, target", "…"]
    for k, text in enumerate(conjunctions):
        y = 46 + 33 * k
        picture.arrow(190, 146, 226, y + 13)
        picture.label(230, y, 130, text, "box", 26)
        picture.arrow(364, y + 13, 428, 58 + (k * 71) % 176)
    picture.text(295, 268, "metafeatures α", "small quiet", MIDDLE)
    for k in range(12):
        picture.box(432, 46 + 17 * k, 70, 15, "adjacent", 0.15 + 0.07 * ((k * 5) % 9))
    picture.text(467, 268, "θ, one flat table", "small quiet", MIDDLE)
    picture.text(396, 38, "hash", "small quiet", MIDDLE)
    picture.arrow(508, 148, 548, 148)
    picture.label(552, 132, 154, "A = Σ θ(hash α)", "mark", 32)
    picture.arrow(629, 168, 629, 196)
    picture.label(552, 200, 154, "M = exp(A) · C / C*", "mark", 32)
    picture.text(
        10,
        306,
        "Weights are shared by all links with the same metafeature. Slots may collide; counts never do.",
        "small quiet",
    )
    return picture


def leave_one_out() -> Picture:
    """Section 3.4: what an event sees of the counts that it is part of."""
    picture = Picture(318, "Leave-one-out: an event is taken out of the counts that it is measured by")
    picture.text(10, 26, "event: “… sees the” → dog.  Its row in the counts:", "bold")
    columns = [("dog", 3), ("fish", 2), ("cat", 1)]

    def row(y: float, name: str, cells: list[tuple[str, int]], kind: str) -> None:
        picture.text(10, y + 20, name, "small")
        for k, (word, n) in enumerate(cells):
            picture.label(250 + 112 * k, y, 104, f"{word}  {n}", kind if k == 0 else "box")
        picture.text(600, y + 20, f"C* = {sum(n for _, n in cells)}", "bold")

    row(44, "as counted", columns, "mark")
    row(104, "positive part: was it dog?", [("dog", 2), *columns[1:]], "adjacent")
    row(164, "negative part: what if it was not?", columns, "remote")
    picture.box(596, 160, 100, 34, "back")
    picture.text(600, 184, "C* = 5", "bold")
    picture.text(
        10,
        226,
        "The positive part raises M of (C* - 1, C - 1): this occurrence does not vouch for itself.",
        "small quiet",
    )
    picture.text(
        10,
        250,
        "The negative part lowers M of (C* - 1, C): it stands for the other events of this feature.",
        "small quiet",
    )
    picture.text(
        10,
        282,
        "So what was seen once has no positive part, and the model learns how far single counts are to be",
        "small quiet",
    )
    picture.text(10, 302, "believed, without any held-out text.", "small quiet")
    return picture


def gate() -> Picture:
    """What the gate adds to the paper: a factor for each row."""
    picture = Picture(330, "The gate: a small network gives each row of an event a factor")
    rows = [("[sees the]", "C* = 2", 1.6), ("[the]", "C* = 6", 0.9), ("[]", "C* = 25", 0.4)]
    picture.text(10, 30, "rows that are there", "small quiet")
    for k, (name, count, factor) in enumerate(rows):
        y = 52 + 72 * k
        picture.label(10, y, 104, name, "adjacent", 30)
        picture.text(10, y + 48, f"{count}, links, sum", "small quiet")
        for unit in range(4):
            picture.arrow(118, y + 15, 236, 66 + 50 * unit)
        for unit in range(4):
            picture.arrow(264, 66 + 50 * unit, 372, y + 15)
        picture.label(378, y, 92, f"× {factor}", "mark", 30)
        picture.arrow(474, y + 15, 506, 139)
    for unit in range(4):
        picture.parts.append(tag("circle", cx="250", cy=str(66 + 50 * unit), r="13", class_="class"))
    picture.text(250, 268, "hidden units", "small quiet", MIDDLE)
    picture.text(424, 268, "exp(B)", "small quiet", MIDDLE)
    picture.label(550, 106, 160, "Σ exp(B) · M", "box", 30)
    picture.label(550, 144, 160, "Σ exp(B) · row sum", "box", 30)
    picture.text(540, 144, "P =", "bold", "end")
    picture.text(
        10, 304, "Each factor multiplies a row and its sum alike, so probabilities still sum to one.", "small quiet"
    )
    return picture


PICTURES = {
    "features.svg": features, "matrix.svg": matrix, "adjustment.svg": adjustment, "leave-one-out.svg": leave_one_out,
    "gate.svg": gate,
}  # fmt: skip


def pictures() -> dict[str, str]:
    return {name: draw().svg() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
