"""Training the gate with PyTorch. See `snm.gate.fitting`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from snm.gate.fitting import GateEvents
from snm.layouts.gate import MAX_GATE, Gate


class TensorGateTrainer:
    """See `snm.gate.fitting.GateTrainer`."""

    def __init__(self, flat: np.ndarray, events: GateEvents, device: torch.device) -> None:
        self.device, gate = device, Gate.of(flat, events.templates)
        self._sizes, self._units = [part.size for part in gate], len(gate.bias)
        self.flat = torch.from_numpy(flat.copy()).to(device).requires_grad_()
        self.events = [torch.from_numpy(part).to(device) for part in events.batch(slice(None))]
        self.adam = torch.optim.Adam([self.flat], fused=device.type == "cuda")

    def _losses(self, chosen: Tensor | slice) -> Tensor:
        """The loss of each chosen event. (events,)"""
        inputs, weights, sums = (part[chosen] for part in self.events)
        hidden, bias, output, offset = torch.split(self.flat, self._sizes)
        active = torch.relu(inputs @ hidden.view(-1, self._units) + bias)
        b = active @ output.view(-1, self._units).T + offset
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
        flat: np.ndarray = self.flat.detach().cpu().numpy().copy()
        return flat
