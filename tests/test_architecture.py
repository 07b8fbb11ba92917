"""The layers of the package: which modules may import which, and what opening a model imports."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRAPH = runpy.run_path(str(ROOT / "docs" / "import_graph.py"))
ONLY_TRAINING = (
    "snm.adjustment", "snm.counts.counting", "snm.counts.spill", "snm.counts.walks", "snm.matrix.writing",
    "snm.gate.fitting", "snm.engines", "snm.pipeline", "snm.settings", "snm.tensors", "snm.kernels.adjustment",
    "snm.kernels.fast_training", "snm.kernels.matrix_writing", "snm.kernels.classes", "snm.reference", "torch",
)  # fmt: skip


def test_no_import_points_upward() -> None:
    assert GRAPH["upward_imports"]() == []


def test_no_modules_import_each_other() -> None:
    """Imports inside functions and for type checking count too."""
    assert GRAPH["cycles"]() == []


def test_every_module_has_a_layer() -> None:
    for module in GRAPH["modules"]():
        GRAPH["level_of"](module)


def test_the_import_graph_is_up_to_date() -> None:
    assert (ROOT / "docs" / "import-graph.svg").read_text() == GRAPH["draw"](), "run: make docs"


def test_kernels_import_nothing_but_kernels_layouts_and_system() -> None:
    for module, targets in GRAPH["imports"]().items():
        if module.startswith("kernels"):
            assert {target.partition(".")[0] for target in targets} <= {"kernels", "layouts", "system"}, module


def test_opening_a_model_imports_nothing_that_only_training_needs(model_path: Path) -> None:
    code = "import sys, snm; snm.load(sys.argv[1]).score('the cat'); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code, model_path], check=True, capture_output=True, text=True)
    imported = set(found.stdout.split())
    assert "snm.scoring.model" in imported
    assert [name for name in sorted(imported) if name.startswith(ONLY_TRAINING)] == []
