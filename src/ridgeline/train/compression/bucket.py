"""Gradients that travel together, and what a scheme remembers of each parameter.

DistributedDataParallel regroups parameters after its first step, and a resumed run begins with
the first grouping again. What is remembered is therefore known by the parameter's name, and lies
in one piece for each bucket only as long as the bucket stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients of one backward pass that travel together."""

    position: int
    """The place among the buckets of this pass."""
    names: tuple[str, ...]
    """Names of the parameters, in the buffer's order."""
    buffer: Tensor
    """The gradients as one flat tensor."""
    gradients: tuple[Tensor, ...]
    """Views into the buffer, one for each parameter."""
    last: bool

    def spans(self) -> Iterator[tuple[str, int, int]]:
        """Name, first and past-the-last element of each parameter."""
        start = 0
        for name, gradient in zip(self.names, self.gradients, strict=True):
            yield name, start, start + gradient.numel()
            start += gradient.numel()


class GradientScheme:
    """What travels in place of a bucket; one that remembers nothing overrides `reduce` alone."""

    def reduce(self, bucket: Bucket) -> None:
        """Make the bucket's buffer, in place, the mean over ranks of what they sent.

        All ranks then hold the same bits. Runs in the order of buckets, beside the backward pass.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """What this rank remembers, by kind and parameter."""
        return {}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from there."""


class ErrorMemory:
    """Numbers in fp32 that are remembered for parameters; zero at first."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._whole: dict[tuple[str, ...], Tensor] = {}
        self._parts: dict[str, Tensor] = {}

    def of(self, names: tuple[str, ...], sizes: Sequence[int], device: torch.device) -> Tensor:
        """The memories of these parameters in one piece, to be changed in place."""
        if names in self._whole:
            return self._whole[names]
        whole = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        parts = dict(zip(names, whole.split(list(sizes)), strict=True))
        for name, part in parts.items():
            if name in self._parts:
                if self._parts[name].numel() != part.numel():
                    raise InputError(
                        f"{self._what} of {name}: {self._parts[name].numel()} numbers were saved"
                        f" and {part.numel()} are needed; resume with as many ranks and the same"
                        " model and compression as the run had"
                    )
                part.copy_(self._parts[name])
        for old in [key for key in self._whole if not parts.keys().isdisjoint(key)]:
            del self._whole[old]
        self._whole[names] = whole
        self._parts.update(parts)
        return whole

    def state_dict(self) -> dict[str, Tensor]:
        """The numbers by parameter."""
        return {name: part.clone() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Forget, and take these."""
        self._whole.clear()
        self._parts = {name: part.clone() for name, part in state.items()}
