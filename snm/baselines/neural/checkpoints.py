"""Checkpoints of the training of a neural model: a folder beside the model's."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.arguments import shown
from snm.baselines.neural.fitting import Fit, FitReport
from snm.errors import FormatError, SettingsError


def checkpoint_folder(output: Path) -> Path:
    """The folder of the checkpoint of a model that will be written to `output`."""
    return output.with_name(output.name + ".checkpoint")


def clear_checkpoint(output: Path) -> None:
    """Remove the checkpoint, unless another run uses it."""
    folder = checkpoint_folder(output)
    with storage.turn(folder, wait=False) as ours:
        for path in (folder, *_others(folder)) if ours else ():
            shutil.rmtree(path, ignore_errors=True)


def _others(folder: Path) -> tuple[Path, Path]:
    """The next checkpoint, which is complete if there is also the one before, and the one before."""
    return folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")


class Checkpoint:
    """The checkpoint of one run. The folder is replaced by renaming, so it is always complete."""

    def __init__(self, output: Path, run: dict[str, Any]) -> None:
        """`run`: settings and digests of the texts, by which a run is recognised."""
        self.folder, self.run = checkpoint_folder(output), run

    def save(self, fit: Fit) -> None:
        new, old = _others(self.folder)
        for folder in (new, old):
            shutil.rmtree(folder, ignore_errors=True)
        new.mkdir(parents=True)
        for name, array in fit.state().items():
            np.save(new / f"{name}.npy", array)
        (new / "state.json").write_text(json.dumps({"run": self.run, "report": asdict(fit.report)}), encoding="utf-8")
        if self.folder.exists():
            os.rename(self.folder, old)
        os.rename(new, self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def restore(self, fit: Fit) -> bool:
        """Resume from the checkpoint; False if there is none."""
        new, old = _others(self.folder)
        if old.exists() and not self.folder.exists():  # a run was killed between two renames
            os.rename(new if new.exists() else old, self.folder)
        if not self.folder.exists():
            return False
        try:
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            found, report = state["run"], FitReport(**state["report"])
            different = [name for name in self.run if found.get(name) != self.run[name]]
            if not different:
                _check(report)
                arrays = {
                    path.name.removesuffix(".npy"): storage.read_array(path) for path in self.folder.glob("*.npy")
                }
                fit.restore(report, arrays)
        except Exception as error:  # what NumPy and PyTorch raise for damaged arrays has no common base
            raise FormatError(
                f"{self.folder} is not a checkpoint ({shown(error)}); delete it to train from the start"
            ) from error
        if different:
            what = ", ".join(f"{name} was {shown(found.get(name))}, is {self.run[name]}" for name in different)
            raise SettingsError(
                f"{self.folder} is the checkpoint of another run: {what}; give the same text and options to resume it, "
                f"or delete it to train from the start"
            )
        return True


def _check(report: FitReport) -> None:
    for name, default in asdict(FitReport()).items():
        value = getattr(report, name)
        numbers = value if isinstance(value, list) else [value]
        wrong = type(value) is not type(default) or any(type(n) not in (int, float) or not n >= 0 for n in numbers)
        if wrong:
            raise ValueError(f"{name} is {shown(value)}")
