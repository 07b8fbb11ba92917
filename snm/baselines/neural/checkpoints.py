"""Checkpoints of the training of a neural model: a folder beside the model's."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snm.baselines.neural.fitting import Fit, FitReport
from snm.errors import FormatError, SettingsError


def checkpoint_folder(output: Path) -> Path:
    """The folder of the checkpoint of a model that will be written to `output`."""
    return output.with_name(output.name + ".checkpoint")


def clear_checkpoint(output: Path) -> None:
    shutil.rmtree(checkpoint_folder(output), ignore_errors=True)


class Checkpoint:
    """The checkpoint of one run. The folder is replaced by renaming, so it is always complete."""

    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        """`run`: settings and digests of the texts, by which a run is recognised."""
        self.folder, self.run = checkpoint_folder(output), run

    def save(self, fit: Fit) -> None:
        new, old = (self.folder.with_name(self.folder.name + end) for end in (".new", ".old"))
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)
        new.mkdir(parents=True)
        for name, array in fit.state().items():
            np.save(new / f"{name}.npy", array)
        (new / "state.json").write_text(json.dumps({"run": self.run, "report": asdict(fit.report)}))
        if self.folder.exists():
            os.rename(self.folder, old)
        os.rename(new, self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def restore(self, fit: Fit) -> bool:
        """Resume from the checkpoint; False if there is none."""
        if not self.folder.exists():
            return False
        try:
            state = json.loads((self.folder / "state.json").read_text())
            found, report = state["run"], FitReport(**state["report"])
            arrays = {path.name.removesuffix(".npy"): np.load(path) for path in self.folder.glob("*.npy")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{self.folder} is not a checkpoint ({error}); delete it to train from the start"
            raise FormatError(message) from error
        different = [name for name in self.run if found.get(name) != self.run[name]]
        if different:
            what = ", ".join(f"{name} was {found.get(name)}, is {self.run[name]}" for name in different)
            raise SettingsError(
                f"{self.folder} is the checkpoint of another run: {what}; give the same text and options to resume it, "
                f"or delete it to train from the start"
            )
        fit.restore(report, arrays)
        return True
