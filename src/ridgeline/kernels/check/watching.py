"""Watches launches under Triton's interpreter: addresses touched, and by which program.

Lanes whose address lies in no tensor of the launch are noted and then left out, so that nothing
outside is read or written. Each launch runs a second time with its programs in another order.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton

from ridgeline.kernels.check.bfloat16 import decoded
from ridgeline.patches import Undo, in_reverse, patch


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
    depends_on_order: dict[str, float] = field(default_factory=dict)
    """Arguments that came out differently in another order, and by how much."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among the arguments, descriptors' bases included, by name."""
        found = {}
        for name, value in self.arguments.items():
            one = getattr(value, "base", None) if hasattr(value, "block_shape") else value
            if isinstance(one, torch.Tensor):
                found[name] = one
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """The addresses of the tensors' storages: first, and one behind the last."""
        storages = [one.untyped_storage() for one in self.tensors.values()]
        return [(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in storages]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as uint8, a view."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class LaunchWatch:
    """Every launch since `install`."""

    def __init__(self) -> None:
        self.launches: list[SeenLaunch] = []
        self._launch: SeenLaunch | None = None
        self._ranges: list[tuple[int, int]] = []
        self._again = False
        self._order: list[int] = []
        self._program = 0

    def install(self) -> Undo:
        """Watch every launch of this process from now on."""
        return in_reverse(
            [
                patch("triton.runtime.interpreter:GridExecutor.__call__", self._called),
                patch("triton.runtime.interpreter:InterpreterBuilder.set_grid_idx", self._placed),
                patch(
                    "triton.runtime.interpreter:InterpreterBuilder.create_masked_load", self._loaded
                ),
                patch(
                    "triton.runtime.interpreter:InterpreterBuilder.create_masked_store",
                    self._stored,
                ),
                patch(
                    "triton.runtime.interpreter:InterpreterBuilder.create_atomic_rmw", self._added
                ),
                patch(
                    "triton.runtime.interpreter:InterpreterBuilder.create_atomic_cas",
                    self._exchanged,
                ),
            ]
        )

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(executor: Any, *args: Any, **options: Any) -> None:
            seen = _seen(executor, args, options)
            storages = {one.untyped_storage().data_ptr(): one for one in seen.tensors.values()}
            seen.before = {place: bytes_of(one).clone() for place, one in storages.items()}
            self.launches.append(seen)
            self._launch, self._ranges, self._again = seen, seen.ranges(), False
            try:
                original(executor, *args, **options)
                after = {place: bytes_of(one).clone() for place, one in storages.items()}
                results = {name: one.detach().clone() for name, one in seen.tensors.items()}
                for place, one in storages.items():
                    bytes_of(one).copy_(seen.before[place])
                self._again, self._order = True, []
                original(executor, *args, **options)
                seen.depends_on_order = _differences(results, seen.tensors)
                for place, one in storages.items():
                    bytes_of(one).copy_(after[place])
            finally:
                self._launch = None

        return call

    def _placed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_grid_idx(builder: Any, x: int, y: int, z: int) -> None:
            sizes = builder.grid_dim
            total = sizes[0] * sizes[1] * sizes[2]
            linear = (x * sizes[1] + y) * sizes[2] + z
            if self._launch is not None and self._again:
                if len(self._order) != total:
                    self._order = list(range(total))
                    random.Random(7).shuffle(self._order)
                linear = self._order[linear]
                x, y, z = (int(one) for one in np.unravel_index(linear, sizes))
            elif self._launch is not None:
                self._launch.programs = total
            self._program = linear
            original(builder, x, y, z)

        return set_grid_idx

    def _loaded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_load(
            builder: Any, pointers: Any, mask: Any, *rest: Any, **named: Any
        ) -> Any:
            safe, inside = self._safe(pointers, mask)
            found = original(builder, pointers, safe, *rest, **named)
            self._note("load", pointers, mask, inside, found)
            return found

        return create_masked_load

    def _stored(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_store(
            builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any
        ) -> Any:
            safe, inside = self._safe(pointers, mask)
            self._note("store", pointers, mask, inside, value)
            return original(builder, pointers, value, safe, *rest)

        return create_masked_store

    def _added(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_rmw(
            builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any
        ) -> Any:
            safe, inside = self._safe(pointers, mask)
            kind = "lock" if "XCHG" in str(operation) else "atomic"
            self._note(kind, pointers, mask, inside, value)
            return original(builder, operation, pointers, value, safe, *rest)

        return create_atomic_rmw

    def _exchanged(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_cas(
            builder: Any, pointers: Any, expected: Any, value: Any, *rest: Any
        ) -> Any:
            mask = type(pointers)(np.ones(pointers.data.shape, bool), triton.language.int1)
            _, inside = self._safe(pointers, mask)
            self._note("lock", pointers, mask, inside, value)
            if not inside.all():
                return expected
            return original(builder, pointers, expected, value, *rest)

        return create_atomic_cas

    def _safe(self, pointers: Any, mask: Any) -> tuple[Any, np.ndarray]:
        """The mask without lanes that point nowhere, and which lanes point into a tensor."""
        inside = np.zeros(pointers.data.shape, bool)
        wide = _width(pointers)
        for first, last in self._ranges:
            inside |= (pointers.data >= first) & (pointers.data + np.uint64(wide) <= last)
        kept = np.broadcast_to(mask.data, inside.shape).astype(bool) & inside
        return type(mask)(kept, mask.dtype), inside

    def _note(self, kind: str, pointers: Any, mask: Any, inside: np.ndarray, value: Any) -> None:
        if self._launch is None or self._again:
            return
        active = np.broadcast_to(mask.data, inside.shape).astype(bool)
        self._launch.accesses.append(
            Access(
                kind=kind,
                program=self._program,
                line=_line_in(self._launch.file),
                addresses=np.array(pointers.data),
                active=active,
                inside=inside,
                width_bytes=_width(pointers),
                nan=np.broadcast_to(_nan(value), inside.shape) & active & inside,
            )
        )


def _width(pointers: Any) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


def _nan(handle: Any) -> np.ndarray:
    data = np.asarray(handle.data)
    if handle.dtype.scalar == triton.language.bfloat16 and data.dtype == np.uint16:
        data = decoded(data)
    return np.isnan(data) if data.dtype.kind == "f" else np.zeros(data.shape, bool)


def _line_in(file: str) -> int:
    """The innermost line of the kernel's own file that is being run."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back  # type: ignore[assignment]
    return 0 if frame is None else frame.f_lineno


def _seen(executor: Any, args: tuple[Any, ...], options: dict[str, Any]) -> SeenLaunch:
    code = executor.fn.__code__
    given = dict(zip(executor.arg_names, args, strict=False))
    given |= {name: value for name, value in options.items() if name in executor.arg_names}
    others = {name: value for name, value in options.items() if name not in executor.arg_names}
    return SeenLaunch(
        kernel=executor.fn.__name__,
        file=code.co_filename,
        line=code.co_firstlineno,
        arguments=given,
        constants=set(executor.constexprs),
        options=others,
    )


def _differences(first: dict[str, torch.Tensor], then: dict[str, torch.Tensor]) -> dict[str, float]:
    found = {}
    for name, one in first.items():
        a, b = one.double().nan_to_num(), then[name].double().nan_to_num()
        if one.numel() and not torch.equal(a, b):
            found[name] = float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))
    return found
