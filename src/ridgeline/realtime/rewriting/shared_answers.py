"""Modules with equal weights that see equal inputs: one computes, the others take its answer.

An input counts as equal when it is so bit for bit. Copying and comparing it costs two passes
through memory, the encoder some hundred; an address would say nothing: buffers are used again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ridgeline.realtime.rewriting.layers import Inner
from ridgeline.runtimes.capture.structure import UnknownStructure, flatten

if TYPE_CHECKING:
    from torch import Tensor

_PROBES = 32
"""Elements by which an input is looked up before it is compared whole."""


class AnswerMemory:
    """The newest answers of a group of modules, by their inputs.

    Args:
        most: Answers that are kept: those of one frame, and of the next.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()
        self._kept: OrderedDict[Any, tuple[list[Tensor], Any]] = OrderedDict()

    def __call__(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:
        """The answer of whichever module of the group saw this input first."""
        import torch

        try:
            inputs, structure = flatten((args, kwargs))
        except UnknownStructure:
            return inner(*args, **kwargs)
        key = (repr(structure), *map(_fingerprint, inputs))
        with self._lock:
            known = self._kept.get(key)
            if known is not None and all(map(torch.equal, known[0], inputs)):
                return known[1]
            answer = inner(*args, **kwargs)
            self._kept[key] = ([one.detach().clone() for one in inputs], answer)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return answer


def _fingerprint(tensor: Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    probes = flat[:: max(1, flat.numel() // _PROBES)][:_PROBES]
    return (tuple(tensor.shape), tensor.dtype, tuple(probes.tolist()))
