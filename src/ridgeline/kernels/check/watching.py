"""Watches launches under Triton's interpreter: addresses touched, and by which program.

Lanes whose address lies in no tensor of the launch are noted and then left out, so that nothing
outside is read or written. Each launch runs a second time with its programs in another order.
"""

from __future__ import annotations

import gc
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton

from ridgeline.kernels.check.bfloat16 import decoded
from ridgeline.kernels.check.hints import broken_promises
from ridgeline.kernels.check.offsets import OffsetReach, watch_offsets
from ridgeline.kernels.check.seen import Access, SeenLaunch, bytes_of
from ridgeline.patches import Undo, in_reverse, patch

_LARGEST = 65536
"""Elements of a table that may hold addresses, at most."""
_LEAST_ADDRESS = 2**32
"""No tensor lies below it; sizes and places do."""


class LaunchWatch:
    """Every launch since `install`."""

    def __init__(self) -> None:
        self.launches: list[SeenLaunch] = []
        self.once = False
        """Whether launches run once alone, and nothing that they touch is noted."""
        self.idle = False
        """Whether launches are passed over."""
        self._launch: SeenLaunch | None = None
        self._ranges: list[tuple[int, int]] = []
        self._again = False
        self._order: list[int] = []
        self._program = self._barriers = self._folds = 0
        self._configuration = ""
        self._variants: list[dict[str, Any]] = []

    def install(self) -> Undo:
        """Watch every launch of this process from now on."""
        return in_reverse(
            [
                watch_offsets(self._reach_of),
                patch("triton.runtime.autotuner:Autotuner.run", self._tuned),
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
                patch("triton.runtime.interpreter:InterpreterBuilder.create_barrier", self._waited),
                patch("triton.runtime.interpreter:TensorHandle.set_attr", self._promised),
                patch("triton.runtime.interpreter:InterpreterBuilder.create_dot", self._multiplied),
                patch("triton.runtime.interpreter:InterpreterBuilder.binary_op", self._computed),
                patch("triton.runtime.interpreter:InterpreterBuilder.unary_op", self._computed),
                patch("triton.runtime.interpreter:InterpreterBuilder.ternary_op", self._computed),
                patch("triton.runtime.interpreter:ReduceOps.apply_impl", self._folded),
                patch("triton.runtime.interpreter:ScanOps.apply_impl", self._folded),
            ]
        )

    def _tuned(self, _: Callable[..., Any]) -> Callable[..., Any]:
        """Run every configuration from the same memory, as none can be timed here."""

        def run(tuner: Any, *args: Any, **options: Any) -> Any:
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            given = tuner.nargs | options
            pruned = tuner.prune_configs(options) if len(tuner.configs) > 1 else tuner.configs
            storages = [one for one in given.values() if isinstance(one, torch.Tensor)]
            before = [bytes_of(one).clone() for one in storages]
            found, ran = None, len(self.launches)
            for first, *others in _alike(pruned):
                for one, kept in zip(storages, before, strict=True):
                    bytes_of(one).copy_(kept)
                tuner.best_config = first
                tuner.pre_hook(given | first.all_kwargs(), reset_only=True)
                if first.pre_hook is not None:
                    first.pre_hook(given | first.all_kwargs())
                self._configuration = ", ".join(f"{key}={one}" for key, one in first.kwargs.items())
                self._variants = [one.all_kwargs() for one in others]
                try:
                    found = tuner.fn.run(*args, **options, **first.all_kwargs())
                finally:
                    self._configuration, self._variants = "", []
            _compare(self.launches[ran:])
            return found

        return run

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(executor: Any, *args: Any, **options: Any) -> None:
            if self.idle:
                return
            seen = _seen(executor, args, options)
            seen.configuration, seen.variants = self._configuration, self._variants
            seen.infinite = seen.find_infinite()
            storages = {one.untyped_storage().data_ptr(): one for one in seen.tensors.values()}
            seen.before = {place: bytes_of(one).clone() for place, one in storages.items()}
            self.launches.append(seen)
            self._launch, self._ranges, self._again = seen, seen.ranges(), self.once
            try:
                original(executor, *args, **options)
                if self.once:
                    return
                after = {place: bytes_of(one).clone() for place, one in storages.items()}
                results = {name: one.detach().clone() for name, one in seen.tensors.items()}
                for place, one in storages.items():
                    bytes_of(one).copy_(seen.before[place])
                self._again, self._order = True, []
                original(executor, *args, **options)
                seen.depends_on_order = _differences(results, seen.tensors)
                seen.results = results if self._configuration else {}
                for place, one in storages.items():
                    bytes_of(one).copy_(after[place])
            finally:
                self._launch = None

        return call

    def _placed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_grid_idx(builder: Any, x: int, y: int, z: int) -> None:
            sizes = [operator.index(one) for one in builder.grid_dim]  # or tensors, of a lambda's
            total = sizes[0] * sizes[1] * sizes[2]
            linear = (x * sizes[1] + y) * sizes[2] + z
            if self._launch is not None and self._again and not self.once:
                if len(self._order) != total:
                    self._order = list(range(total))
                    random.Random(7).shuffle(self._order)
                linear = self._order[linear]
                x, y, z = (int(one) for one in np.unravel_index(linear, sizes))
            elif self._launch is not None:
                self._launch.programs = total
            self._program, self._barriers, self._folds = linear, 0, 0
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

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_barrier(builder: Any, *rest: Any) -> Any:
            self._barriers += 1
            return original(builder, *rest)

        return create_barrier

    def _promised(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_attr(handle: Any, name: str, values: Sequence[int]) -> None:
            if self._launch is not None and not self._again and name == "tt.divisibility":
                step = _width(handle) if handle.dtype.is_ptr() else 1
                line = _line_in(self._launch.file)
                data = np.asarray(handle.data)
                self._launch.broken.extend(broken_promises(data, values, step, line))
            original(handle, name, values)

        return set_attr

    def _multiplied(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
            self._folds += 1
            if self._launch is not None and not self._again:
                kind = str(a.dtype.scalar)
                cut = kind == "fp32" and str(precision).endswith("TF32")
                self._launch.matrix_flops += 2 * int(a.data.size) * int(b.data.shape[-1])
                self._launch.matrix_dtype = "tf32" if cut else kind
            return original(builder, a, b, d, precision, *rest)

        return create_dot

    def _computed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compute(builder: Any, *given: Any) -> Any:
            found = original(builder, *given)
            if self._launch is not None and not self._again and found.dtype.scalar.is_floating():
                self._launch.vector_flops += int(np.size(found.data))
            return found

        return compute

    def _folded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply_impl(operation: Any, tensors: Any) -> Any:
            self._folds += 1
            launch = None if self._again else self._launch
            if launch is not None and tensors[0].dtype.scalar.is_floating():
                launch.vector_flops += int(np.size(tensors[0].handle.data))
            return original(operation, tensors)

        return apply_impl

    def _reach_of(self, address: int) -> OffsetReach | None:
        """What is noted of the offsets into the tensor in which an address lies."""
        if self._launch is not None and not self._again:
            for first, last in self._ranges:
                if first <= address < last:
                    return self._launch.reach.setdefault(first, OffsetReach())
        return None

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
        values = np.broadcast_to(value.data, inside.shape).copy() if kind == "store" else None
        self._launch.accesses.append(
            Access(
                kind=kind,
                program=self._program,
                line=_line_in(self._launch.file),
                addresses=np.array(pointers.data),
                active=active,
                inside=inside,
                width_bytes=_width(pointers),
                values=values,
                nan=np.broadcast_to(_nan(value), inside.shape) & active & inside,
                barriers=self._barriers,
                folds=self._folds,
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
        pointed_at=dict(_pointed_at(given)),
    )


def _alike(configurations: list[Any]) -> list[list[Any]]:
    """Configurations by the constants that they give, those that differ for the compiler beside."""
    found: dict[str, list[Any]] = {}
    for one in configurations:
        found.setdefault(repr(sorted(one.kwargs.items())), []).append(one)
    return list(found.values())


def _compare(launches: list[SeenLaunch]) -> None:
    """Note how far what each configuration wrote is from what the last one did, and forget both."""
    for one in launches[:-1]:
        one.depends_on_configuration = _differences(one.results, launches[-1].results)
    for one in launches:
        one.results = {}


def _pointed_at(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The living tensors whose addresses stand in arguments of int64, with where they stand."""
    tables = {
        name: one.reshape(-1).tolist()
        for name, one in arguments.items()
        if isinstance(one, torch.Tensor) and one.dtype == torch.int64 and one.numel() <= _LARGEST
    }
    if not any(value >= _LEAST_ADDRESS for values in tables.values() for value in values):
        return
    alive = {
        one.data_ptr(): one
        for one in gc.get_objects()
        if isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.numel()
    }
    for name, values in tables.items():
        for place, value in enumerate(values):
            if value in alive:
                yield f"{name}[{place}]", alive[value]


def _differences(first: dict[str, torch.Tensor], then: dict[str, torch.Tensor]) -> dict[str, float]:
    found = {}
    for name, one in first.items():
        if name not in then or then[name].shape != one.shape:
            continue
        a, b = one.double().nan_to_num(), then[name].double().nan_to_num()
        if one.numel() and not torch.equal(a, b):
            found[name] = float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))
    return found
