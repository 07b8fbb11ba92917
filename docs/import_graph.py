"""Draws the import graph of the package: `make docs` writes docs/import-graph.svg. A test keeps it true.

The rooms of ROOMS are listed from the bottom up. A module may import from its own room and from rooms below it,
never from one above; imports inside functions and for type checking count too.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "snm"
ROOMS: list[list[str]] = [
    ["errors", "progress", "system", "version"],
    ["arguments", "parallel", "memory", "devices", "storage", "scratch", "remote", "markup"],
    ["layouts"],
    ["kernels"],
    ["text"],
    ["features"],
    ["counts"],
    ["adjustment"],
    ["matrix"],
    ["gate"],
    ["tensors"],
    ["model", "manifest", "describing"],
    ["scoring"],
    ["baselines"],
    ["loading"],
    ["kenlm"],
    ["evaluation", "mixing", "settings", "sources"],
    ["hybrids", "pruning"],
    ["projection"],
    ["cluster"],
    ["engines"],
    ["disk", "counted", "resuming", "filtering"],
    ["preparing"],
    ["folding"],
    ["pipeline", "integrations", "decoding", "rescoring"],
    ["exporting"],
    ["reproduction", "demo", "warmup", "planning", "adapting"],
    ["reporting"],
    ["server"],
    ["cli"],
]
BESIDE = ["reference"]
"""The oracle of the tests: it imports layouts and the specification of features, and nothing imports it."""


def modules() -> dict[str, Path]:
    """All modules of the package, by their names without `snm.`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and name != "__main__":
            found[name] = path
    return found


def imports() -> dict[str, set[str]]:
    """Which modules each module imports, wherever in its file it does."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            for target in _targets(node, known):
                if target != name:
                    graph[name].add(target)
    for target in _registered():
        graph["loading"].add(target)
    return graph


def _targets(node: ast.AST, known: dict[str, Path]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name[4:] for alias in node.names if alias.name.startswith("snm.")]
    if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "snm":
        return []
    base = (node.module or "")[4:]
    full = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return [name if name in known else base for name in full if name in known or base]


def _registered() -> list[str]:
    """The modules that `snm.load` imports by name."""
    tree = ast.parse((PACKAGE / "loading.py").read_text())
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [text[4:].partition(":")[0] for text in strings if text.startswith("snm.") and ":" in text]


def room_of(module: str) -> str:
    return module.partition(".")[0]


def level_of(module: str) -> int | None:
    """The floor of a module's room, counted from the bottom; None for what is beside the building."""
    room = room_of(module)
    if room in BESIDE:
        return None
    return next(i for i, rooms in enumerate(ROOMS) if room in rooms)


def upward_imports() -> list[str]:
    """Imports from a room above one's own, or from what is beside."""
    found = []
    for module, targets in imports().items():
        for target in targets:
            own, other = level_of(module), level_of(target)
            if other is None and own is not None:
                found.append(f"{module} imports {target}, which only tests may")
            elif own is not None and other is not None and own < other:
                found.append(f"{module} imports {target}, which is above it")
    return sorted(found)


def cycles() -> list[list[str]]:
    """Groups of modules that import each other, however indirectly (Tarjan's algorithm)."""
    graph, index, low, stack, found = imports(), {}, {}, [], []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph.get(module, ()):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            group = []
            while not group or group[-1] != module:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def room_edges() -> set[tuple[str, str]]:
    """(room, room that it imports), without the edges that follow from others: those between rooms further apart."""
    edges = {(room_of(a), room_of(b)) for a, targets in imports().items() for b in targets}
    below: dict[str, set[str]] = {}
    for a, b in edges:
        if a != b:
            below.setdefault(a, set()).add(b)

    def reach(room: str) -> set[str]:
        """All rooms that a room imports, however indirectly."""
        return set().union(*({r} | reach(r) for r in below.get(room, ())))

    return {(a, b) for a in below for b in below[a] if not any(b in reach(c) for c in below[a] - {b})}


def draw() -> str:
    """The rooms as an SVG, a floor a line, arrows from a room to the rooms below that it imports.

    The two lowest floors are imported from everywhere and drawn without arrows.
    """
    width, height, box, top = 760, 56, 140, 30
    floors, ground = list(reversed(ROOMS[2:])), [room for rooms in reversed(ROOMS[:2]) for room in rooms]
    places: dict[str, tuple[float, float]] = {}
    for row, rooms in enumerate(floors):
        for column, room in enumerate(rooms):
            x = width / 2 + (column - (len(rooms) - 1) / 2) * (box + 30)
            places[room] = (x, top + row * height)
    places["reference"] = (width - box / 2 - 10, top + 9 * height)
    bottom = top + height * len(floors)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 30}" font-family="sans-serif" '
        f'font-size="14">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
    ]
    for a, b in sorted(room_edges()):
        if a in places and b in places:
            (x1, y1), (x2, y2) = places[a], places[b]
            side = 110 if abs(y2 - y1) > 1.5 * height and abs(x1 - x2) < 1 else 0
            lines.append(
                f'<path d="M{x1:.0f} {y1 + 15:.0f} C {x1 + side:.0f} {y1 + 35:.0f}, {x2 + side:.0f} {y2 - 35:.0f}, '
                f'{x2:.0f} {y2 - 17:.0f}" fill="none" stroke="#555" marker-end="url(#a)"/>'
            )
    for room, (x, y) in places.items():
        step = room in ("text", "features", "counts", "adjustment", "matrix", "gate", "scoring")
        lines.append(_box(x, y, box, room, "#dcebf7" if step else "#f1f1f1"))
    lines.append(_box(width / 2, bottom, width - 20, "   ".join(ground), "#f1f1f1"))
    return "\n".join([*lines, "</svg>", ""])


def _box(x: float, y: float, width: float, text: str, colour: str) -> str:
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - 15:.0f}" width="{width:.0f}" height="30" rx="5" fill="{colour}" '
        f'stroke="#666"/><text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{text}</text>'
    )


if __name__ == "__main__":
    (Path(__file__).parent / "import-graph.svg").write_text(draw())
