"""A loaded program, called as the module is: structure in, structure out.

run = Answering(artifact, lambda tensors: session(tensors))
logits = run(pixels=images)["logits"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.runtimes import Artifact
from ridgeline.runtimes.capture.structure import (
    UnknownStructure,
    find_classes,
    flatten,
    in_words,
    unflatten,
)


class Answering:
    """Calls a program of tensors as the module that it was made from."""

    def __init__(self, artifact: Artifact, run: Callable[[list[Tensor]], list[Tensor]]) -> None:
        self.artifact = artifact
        self._run = run
        self._dtypes = [getattr(torch, name) for name in artifact.dtypes]
        self._batch = artifact.shapes[0][:1]
        find_classes(artifact.outputs)  # so that no call has to

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments.

        Raises:
            InputError: Arguments that the program was not made for.
        """
        try:
            tensors, structure = flatten((args, kwargs))
        except UnknownStructure as error:
            raise InputError(f"an argument is a {error}, which the program does not take") from None
        if structure != self.artifact.inputs:
            raise InputError(
                f"called with {in_words(structure)}; the program was made for "
                f"{in_words(self.artifact.inputs)}"
            )
        self._check(tensors)
        given = [one.detach().contiguous() for one in tensors]  # as the example was captured
        return unflatten(self.artifact.outputs, self._run(given))

    def _check(self, tensors: list[Tensor]) -> None:
        for tensor, shape, dtype in zip(tensors, self.artifact.shapes, self._dtypes, strict=True):
            if tensor.dtype != dtype:
                raise InputError(f"called with {tensor.dtype}; the program was made for {dtype}")
            now = list(tensor.shape)
            if now == shape:
                continue
            free = self._free(shape)
            if len(now) != len(shape) or any(
                a != b and i not in free for i, (a, b) in enumerate(zip(now, shape, strict=True))
            ):
                raise InputError(
                    f"called with a tensor of {now}; the program was made for {shape}"
                    + (f", free in {', '.join(self.artifact.free)}" if free else "")
                )

    def _free(self, shape: list[int]) -> set[int]:
        """Dimensions of a tensor that may differ from the example's."""
        free: set[int] = set()
        if "batch" in self.artifact.free and shape[:1] == self._batch:
            free.add(0)
        if "size" in self.artifact.free and len(shape) == 4:
            free |= {2, 3}
        return free
