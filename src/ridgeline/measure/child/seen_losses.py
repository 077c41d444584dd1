"""The losses of a script's steps, or what stands in for them where nothing is trained."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ridgeline.measure.child.guard import guarded
from ridgeline.measure.child.inputs import tensors_in

_OUTPUTS_KEPT = 24
_OUTPUTS_OF_A_CALL = 4
"""Tensors of one call that are looked at: caches and hidden states may follow them."""
_HOST_BYTES = 416
"""One number as a tensor of its own, as glibc counts it (torch 2.13)."""
_DEVICE_BYTES = 512
"""The least that CUDA's allocator of torch gives out."""


class SeenLosses:
    """Copies that are read later, so that the device need not be waited for.

    Args:
        recording: False: none are kept.
    """

    def __init__(self, *, recording: bool) -> None:
        self.by_step: list[list[torch.Tensor]] = []
        """One of each backward: they may lie on several devices."""
        self._recording = recording
        self._step: list[torch.Tensor] = []
        self._scales: dict[int, float] = {}
        self._told = 0

    @property
    def kept_bytes(self) -> int:
        """About what all that is kept takes in memory, on the host and on the device."""
        kept = [*itertools.chain(*self.by_step), *self._step]
        return sum(_HOST_BYTES + (_DEVICE_BYTES if one.is_cuda else 0) for one in kept)

    @guarded()
    def remember(self, roots: list[Any]) -> None:
        """Keep what a backward begins with, of the step under way."""
        if not self._recording:
            return
        for root in roots:
            value = _scalar(root) if isinstance(root, torch.Tensor) else None
            if value is not None:
                factor = self._scales.pop(id(root), None)
                self._step.append(value if factor is None else value / factor)

    @guarded()
    def remember_output(self, result: Any) -> None:
        """Keep projections of what the first calls of what may be an inference script return.

        They stand in for the loss, so that techniques can be verified on them. A detector returns
        boxes and scores: each is looked at.
        """
        if not self._recording or len(self.by_step) >= _OUTPUTS_KEPT:
            return
        outputs = [
            _projection(output.detach())
            for output in itertools.islice(tensors_in(result), _OUTPUTS_OF_A_CALL)
            if output.is_floating_point() and output.numel() and not output.is_meta
        ]
        if outputs:
            self.by_step.append(outputs)

    def scaled(self, scaled: torch.Tensor, factor: float) -> None:
        """Remember by how much a gradient scaler multiplied a loss."""
        self._scales = {id(scaled): factor}

    def clear(self) -> None:
        """Forget all, those of the step under way too."""
        self.by_step.clear()
        self._step.clear()
        self._told = 0

    def untold(self) -> list[list[torch.Tensor]]:
        """The steps' losses since this was last asked, or since all were forgotten."""
        new = self.by_step[self._told :]
        self._told = len(self.by_step)
        return new

    def end_step(self) -> None:
        """The step is over; one without losses adds none."""
        if self._step:
            self.by_step.append(self._step)
        self._step = []


def _scalar(loss: torch.Tensor) -> torch.Tensor | None:
    """A copy of a loss that can be read later; None when it holds no number of its own.

    A loss on the meta device has no value, what a sharded one holds here is a part of it, and one
    inside of `torch.func` ends with the call.
    """
    if loss.numel() != 1 or loss.is_meta or is_functorch_wrapped_tensor(loss):
        return None
    value = loss.detach()
    placements = getattr(value, "placements", None)
    if placements is not None:
        if not all(placement.is_replicate() for placement in placements):
            return None
        value = value.to_local()  # type: ignore[attr-defined]
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.is_complex():
        value = value.real
    return value.float().reshape(()).clone()


def sum_of(losses: list[torch.Tensor]) -> float:
    """The sum of one step's losses, wherever each lies: its gradient is the sum of theirs."""
    return sum(float(loss) for loss in losses)


def _projection(output: torch.Tensor) -> torch.Tensor:
    """One number that moves when any element of `output` does.

    The mean product with a fixed quasi-random direction; of the size of the elements.
    """
    flat = output.reshape(-1).float()
    direction = torch.arange(flat.numel(), device=flat.device, dtype=torch.float32)
    direction = torch.frac(direction * 0.6180339887) - 0.25
    return (flat * direction).mean() / direction.abs().mean()
