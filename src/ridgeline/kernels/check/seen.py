"""What is kept of a launch under the interpreter: its arguments, and every access to memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ridgeline.kernels.check.hints import BrokenPromise
from ridgeline.kernels.check.offsets import OffsetReach

_WITH_INFINITY = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One load, store or atomic of one program."""

    kind: str
    """`load`, `store`, `atomic` or `lock`."""
    program: int
    line: int
    addresses: np.ndarray
    """The address of every lane, in the shape of the request."""
    active: np.ndarray
    """Which lanes take part: the mask."""
    inside: np.ndarray
    """Which lanes point into a tensor of the launch."""
    width_bytes: int
    nan: np.ndarray
    """Which active lanes read or write NaN."""
    values: np.ndarray | None = None
    """What a store writes, lane by lane, as the interpreter keeps numbers."""
    barriers: int = 0
    """Barriers that its program has passed before it."""
    folds: int = 0
    """Reductions, scans and matmuls that its program has done before it."""

    @property
    def starts(self) -> np.ndarray:
        """The addresses of the active lanes that point into a tensor, in their order."""
        return np.asarray(self.addresses[self.active & self.inside].reshape(-1))

    @property
    def written(self) -> np.ndarray:
        """What a store writes to each of `starts`, as bytes: rows of `width_bytes`."""
        assert self.values is not None
        kept = np.ascontiguousarray(self.values[self.active & self.inside].reshape(-1))
        return kept.view(np.uint8).reshape(len(kept), -1)


@dataclass
class SeenLaunch:
    """A launch with everything that it touched."""

    kernel: str
    file: str
    line: int
    arguments: dict[str, Any]
    constants: set[str]
    options: dict[str, Any]
    programs: int = 0
    accesses: list[Access] = field(default_factory=list)
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    """The bytes of each storage before the launch, by its address."""
    infinite: frozenset[str] = frozenset()
    """Arguments that held an infinity before the launch."""
    depends_on_order: dict[str, float] = field(default_factory=dict)
    """Arguments that came out differently in another order, and by how much."""
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """What its tensors held afterwards, until configurations have been compared."""
    depends_on_configuration: dict[str, float] = field(default_factory=dict)
    """Arguments that came out otherwise than by the last configuration, and by how much."""
    pointed_at: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors whose addresses stand in an argument, a table of pointers."""
    configuration: str = ""
    """Which of an autotuner's configurations this is."""
    variants: list[dict[str, Any]] = field(default_factory=list)
    """Options of other configurations that differ for the compiler alone."""
    broken: list[BrokenPromise] = field(default_factory=list)
    """Hints to the compiler that do not hold."""
    reach: dict[int, OffsetReach] = field(default_factory=dict)
    """The largest offsets into each storage, by its address."""
    matrix_flops: int = 0
    """Multiplications and additions of `tl.dot`."""
    matrix_dtype: str = ""
    """What `tl.dot` multiplied last, as Triton names it: `bf16`, `fp8e4nv`; or `tf32`."""
    vector_flops: int = 0
    """Floating-point results of everything else."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among the arguments, what tables point at included, by name."""
        found = dict(self.pointed_at)
        for name, value in self.arguments.items():
            one = getattr(value, "base", None) if hasattr(value, "block_shape") else value
            if isinstance(one, torch.Tensor):
                found[name] = one
        return found

    def find_infinite(self) -> frozenset[str]:
        """The names of the tensors that hold an infinity now."""
        return frozenset(
            name
            for name, one in self.tensors.items()
            if one.dtype in _WITH_INFINITY and bool(one.detach().isinf().any())
        )

    def wrote_to(self, tensor: torch.Tensor) -> bool:
        """Whether a store or an atomic went to the memory that a tensor lies in."""
        return self._touched(tensor, [one for one in self.accesses if one.kind != "load"])

    def read(self, tensor: torch.Tensor) -> bool:
        """Whether a load or an atomic came from the memory that a tensor lies in."""
        return self._touched(tensor, [one for one in self.accesses if one.kind != "store"])

    def _touched(self, tensor: torch.Tensor, accesses: Sequence[Access]) -> bool:
        storage = tensor.untyped_storage()
        first, behind = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        return any(bool(((one.starts >= first) & (one.starts < behind)).any()) for one in accesses)

    def ranges(self) -> list[tuple[int, int]]:
        """The addresses of the tensors' storages: first, and one behind the last."""
        storages = [one.untyped_storage() for one in self.tensors.values()]
        return [(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in storages]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as uint8, a view."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def among(places: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Which places stand in a sorted array."""
    if not len(ordered):
        return np.zeros(places.shape, bool)
    at = np.minimum(np.searchsorted(ordered, places), len(ordered) - 1)
    return np.asarray(ordered[at] == places)


def distinct(places: np.ndarray) -> np.ndarray:
    """Each place once, in order; numpy's own is slow on addresses, which hash alike."""
    ordered = np.sort(places)
    first = np.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[first])
