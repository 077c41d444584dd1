"""A user's module that asks for CUDA by name, counted on a machine that has none.

Networks are counted for devices that are not here, and public ones often write `.cuda()` or
`device="cuda"` into their constructor or forward. What is asked of CUDA lies where the module's
parameters do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Instead(TorchFunctionMode):  # type: ignore[misc]  # torch's is not typed
    """Answers whatever names a CUDA device on `device`."""

    def __init__(self, device: str | torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the function, on the device that is here."""
        del types
        if function is torch.Tensor.cuda:
            return args[0].to(self._device)
        named = {name: self._here(value) for name, value in (kwargs or {}).items()}
        return function(*map(self._here, args), **named)

    def _here(self, value: Any) -> Any:
        """The device that is here in the place of a CUDA device; anything else as it is."""
        if isinstance(value, torch.device):
            return torch.device(self._device) if value.type == "cuda" else value
        if isinstance(value, str) and value.partition(":")[0] == "cuda":
            return self._device
        return value


@contextlib.contextmanager
def cuda_means(device: str | torch.device) -> Iterator[None]:
    """While inside, CUDA is `device`, if there is no CUDA here."""
    if torch.cuda.is_available():
        yield
        return
    with _Instead(device):
        yield
