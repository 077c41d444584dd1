"""Memory that is allocated once and filled for every frame: a stage's inputs, and the way to a GPU.

A copy from ordinary memory to a GPU goes through a hidden pinned buffer and makes the host wait;
from pinned memory it runs beside the host's next work (CUDA C++ programming guide, page-locked host
memory). Allocating pinned memory takes longer than most stages do, so it is done once per shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_CONSTANTS = (int, float, str, bool, type(None))


class FixedInputs:
    """A stage's inputs at fixed addresses, which each frame's inputs are copied into.

    Args:
        inputs: Those of one frame: tensors, arrays and constants, in any nesting of tuples, lists
            and dictionaries. Arrays become tensors.
        device: Where the copies lie.

    Raises:
        TypeError: Something else is among the inputs.
    """

    def __init__(self, inputs: tuple[Any, ...], device: Any) -> None:
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, self._structure = tree_flatten(inputs)
        self._kinds = [_kind(leaf) for leaf in leaves]
        if None in self._kinds:
            strange = type(leaves[self._kinds.index(None)]).__name__
            raise TypeError(f"an input is a {strange}, neither tensor nor constant")
        self._buffers = [_TensorBuffer(leaf, device) if _is_data(leaf) else None for leaf in leaves]
        placed = [
            leaf if buffer is None else buffer.fixed
            for leaf, buffer in zip(leaves, self._buffers, strict=True)
        ]
        self.values: tuple[Any, ...] = tree_unflatten(placed, self._structure)
        """The inputs, at their fixed addresses."""

    def fill(self, inputs: tuple[Any, ...]) -> bool:
        """Copy a frame's inputs, where shapes, dtypes and constants are those seen first.

        Otherwise nothing is copied, and the answer is False.
        """
        from torch.utils._pytree import tree_flatten

        leaves, structure = tree_flatten(inputs)
        if structure != self._structure or [_kind(leaf) for leaf in leaves] != self._kinds:
            return False
        for leaf, buffer in zip(leaves, self._buffers, strict=True):
            if buffer is not None:
                buffer.fill(leaf)
        return True


class Upload:
    """A stage that moves arrays and tensors from the host to a device through pinned memory.

    The result is of the same nesting, in memory of its own for each frame, so frames may wait on
    edges. The host does not wait for the copy.

    Args:
        device: As torch names it: `"cuda"`, `"cuda:1"`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._pinned: dict[tuple[int, Any], _PinnedBuffer] = {}
        """Position among the frame's tensors, and shape and dtype → its buffer."""

    def __call__(self, frame: Any) -> Any:
        """The frame on the device."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, structure = tree_flatten(frame)
        moved = [
            self._moved(place, _tensor(leaf)) if _is_data(leaf) else leaf
            for place, leaf in enumerate(leaves)
        ]
        return tree_unflatten(moved, structure)

    def _moved(self, place: int, leaf: Any) -> Any:
        import torch

        key = place, _kind(leaf)
        if key not in self._pinned:
            self._pinned[key] = _PinnedBuffer(leaf, torch.device(self._device))
        target = torch.empty(leaf.shape, dtype=leaf.dtype, device=self._device)
        self._pinned[key].send(leaf, target)
        return target


class _TensorBuffer:
    """One input at a fixed address, and the pinned memory before it where it comes from a host."""

    def __init__(self, example: Any, device: Any) -> None:
        import torch

        tensor = _tensor(example)
        device = torch.device(device)
        self.fixed = torch.empty_like(tensor, device=device, requires_grad=False)
        from_host = tensor.device.type == "cpu" and device.type == "cuda"
        self._pinned = _PinnedBuffer(tensor, device) if from_host else None

    def fill(self, value: Any) -> None:
        tensor = _tensor(value).detach()
        if self._pinned is None:
            self.fixed.copy_(tensor, non_blocking=True)
        else:
            self._pinned.send(tensor, self.fixed)


class _PinnedBuffer:
    """Page-locked memory for one tensor; where the device is no GPU, ordinary memory."""

    def __init__(self, example: Any, device: Any) -> None:
        import torch

        cuda = device.type == "cuda"
        self._host = torch.empty_like(example, requires_grad=False, pin_memory=cuda)
        self._sent = torch.cuda.Event() if cuda else None

    def send(self, value: Any, target: Any) -> None:
        """Copy to the device; the last copy must have left the buffer before."""
        if self._sent is not None:
            self._sent.synchronize()  # at once, before the first record
        self._host.copy_(value)
        target.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def _is_data(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor | np.ndarray)


def _tensor(leaf: Any) -> Any:
    import torch

    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _kind(leaf: Any) -> Any:
    """What must stay the same from frame to frame; None: nothing that we know."""
    if _is_data(leaf):
        tensor = _tensor(leaf)
        return tuple(tensor.shape), tensor.dtype, tensor.device.type
    return (type(leaf), leaf) if isinstance(leaf, _CONSTANTS) else None
