"""What optimizers are about to step by: gradients, of how many tensors, under which settings.

A loss shows a wrong update only steps later, and hardly at all where the optimizer divides by the
gradient's own size: clipping that was added, gradients that were kept, a layer that was frozen
train on as if nothing were. The gradients themselves tell at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ridgeline.measure.wire import Updates

_SETTINGS = ("lr", "weight_decay", "betas", "momentum", "dampening", "nesterov", "eps", "alpha",
             "amsgrad", "maximize", "lr_decay", "lambd", "rho")  # fmt: skip
"""What of a group decides what a step does; `fused` and `foreach` only say how it is done."""
_SAMPLED = 256
"""Elements of each parameter that are looked at."""
_SHORT_BITS = 16
"""Bits of a float32 that are zero where it came out of bfloat16."""


class UpdateWatch:
    """Weighs the gradients of the first steps, and looks at the weights once, in the last."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._short: torch.Tensor | None = None
        self._now: list[torch.Tensor] = []
        self._steps: list[list[torch.Tensor]] = []
        self._set: dict[str, Any] = {}
        self._settings: list[dict[str, Any]] = []

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Weigh what an optimizer is about to use; nothing waits for the numbers."""
        if self._left <= 0:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            gradient = _plain(parameter.grad)
            if gradient is not None:
                wide = torch.float32 if gradient.element_size() < 4 else None
                self._now.append(torch.linalg.vector_norm(gradient, dtype=wide))
        for group in optimizer.param_groups:
            _add_settings(self._set, group)
        if self._left == 1:
            short = [_is_short(plain) for plain in map(_plain, parameters) if plain is not None]
            self._short = torch.stack([one.cpu() for one in short]).all() if short else None

    def boundary(self) -> None:
        """Close the step that ended."""
        if self._left > 0 and self._now:
            self._steps.append(self._now)
            self._settings.append(self._set)
            self._now, self._set = [], {}
            self._left -= 1

    def report(self) -> Updates:
        """What was seen since the last report."""
        steps, self._steps = self._steps, []
        settings, self._settings = self._settings, []
        weighed = [[float(norm) for norm in step] for step in steps]
        short, self._short = self._short, None
        return Updates(
            norms=[math.hypot(*norms) for norms in weighed],
            tensors=[sum(norm > 0 for norm in norms) for norms in weighed],
            settings=[_means(step) for step in settings],
            short=None if short is None else bool(short),
        )


def _add_settings(sums: dict[str, Any], group: dict[str, Any]) -> None:
    """Add a group's settings to those of the others, each times the elements it is for."""
    elements = sum(parameter.numel() for parameter in group["params"])
    sums["elements"] = sums.get("elements", 0) + elements
    for name in _SETTINGS:
        found = group.get(name)
        for number, value in enumerate(found if isinstance(found, (tuple, list)) else [found]):
            if isinstance(value, (bool, int, float)) or _is_number(value):
                key = f"{name}[{number}]" if isinstance(found, (tuple, list)) else name
                sums[key] = sums.get(key, 0.0) + elements * value


def _means(sums: dict[str, Any]) -> dict[str, float]:
    """Each setting as the mean over the elements of a step, and how many there were."""
    elements = max(sums["elements"], 1)
    means = {name: float(total) / elements for name, total in sums.items()}
    return means | {"elements": float(sums["elements"])}


def _is_number(value: Any) -> bool:
    """Is it a number in a tensor, as learning rates of captured steps are?"""
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta


def _plain(tensor: Any) -> torch.Tensor | None:
    """The numbers that are here: of a sharded tensor this rank's part, of a sparse one its values.

    None where there are none, or they are no floats.
    """
    if tensor is None:
        return None
    found = getattr(tensor, "_local_tensor", tensor)
    if found.layout is not torch.strided:
        found = found._values() if found.layout is torch.sparse_coo else None
    if found is None or found.is_meta or not found.is_floating_point():
        return None
    return found.detach()  # type: ignore[no-any-return]


def _is_short(weights: torch.Tensor) -> torch.Tensor:
    """Does each of some weights fit in bfloat16?"""
    some = weights.reshape(-1)[:_SAMPLED]
    if some.dtype is not torch.float32:
        return torch.tensor(some.element_size() < 4)
    return (some.view(torch.int32) % (1 << _SHORT_BITS) == 0).all()
