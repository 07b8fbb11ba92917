"""The gate's training on a device. See `snm.calibration`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from snm.gate.fitting import GateEvents
from snm.layouts.gate import INPUTS, MAX_GATE


class TensorGateTrainer:
    """See `snm.calibration.Learner`."""

    def __init__(self, flat: np.ndarray, events: GateEvents, device: torch.device) -> None:
        self.templates, self.device = events.templates, device
        self.flat = torch.from_numpy(flat.copy()).to(device).requires_grad_()
        self.events = [torch.from_numpy(part).to(device) for part in events.batch(slice(None))]
        self.adam = torch.optim.Adam([self.flat], fused=device.type == "cuda")

    def _losses(self, chosen: Tensor | slice) -> Tensor:
        """Of events, one each."""
        inputs, weights, sums = (part[chosen] for part in self.events)
        units = (len(self.flat) - self.templates) // (self.templates * INPUTS + 1 + self.templates)
        sizes = self.templates * INPUTS * units, units, self.templates * units, self.templates
        hidden, bias, output, offset = torch.split(self.flat, sizes)
        active = torch.relu(inputs @ hidden.view(-1, units) + bias)
        b = active @ output.view(self.templates, units).T + offset
        scale = torch.exp(b.clamp(-MAX_GATE, MAX_GATE))
        return torch.log((scale * sums).sum(1)) - torch.log((scale * weights).sum(1))

    def step(self, chosen: np.ndarray, rate: float) -> None:
        loss = self._losses(torch.from_numpy(chosen).to(self.device)).mean()
        self.adam.param_groups[0]["lr"] = rate
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()

    def loss(self, chosen: slice) -> float:
        with torch.no_grad():
            return float(self._losses(chosen).double().sum())

    def weights(self) -> np.ndarray:
        made: np.ndarray = self.flat.detach().cpu().numpy().copy()
        return made
