"""Watch every operator of a few steps: FLOPs, bytes, and who calls them.

A dispatch mode sees operators below autograd, backward included. What FLOPs they take is known to
`flop_formulas.py`. Bytes are the least an operator could move: each input read once, each output
(or argument changed in place) written once; views move nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_leaves

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.anatomy import channels_last_of
from ridgeline.measure.child.flop_formulas import (
    SPARSE_PRODUCTS,
    flops_of,
    is_sparse,
    stored_elements,
)
from ridgeline.measure.child.guard import attempt, guarded
from ridgeline.measure.child.live_memory import LiveMemory
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.higher_order import is_higher_order, run_inside
from ridgeline.measure.wire import OperatorCall
from ridgeline.records import SyncPoint

aten = torch.ops.aten

SYNC_KINDS: dict[Any, str] = {
    aten._local_scalar_dense: "item",
    aten.is_nonzero: "item",
    aten.nonzero: "nonzero",
    aten.masked_select: "nonzero",
    aten.equal: "item",
    aten.unique_dim: "nonzero",
    aten._unique2: "nonzero",
}


class OperatorMode(TorchDispatchMode):
    """Collects until taken off; one instance per window."""

    supports_higher_order_operators = True

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent
        self.calls: dict[tuple[str, str, str, str], list[float]] = {}
        self.syncs: dict[Any, list[Any]] = {}
        self.math_attention: dict[Any, list[Any]] = {}
        self.coordinate_products: dict[Any, list[Any]] = {}
        self.towards_loss = [0.0, 0.0]
        """Calls and seconds of operators outside of any module's call that a loss depends on."""
        self.channels_first = 0
        self.pageable_copies = 0
        self.memory = LiveMemory(agent)
        self._paused = False
        self._whole: set[Any] = set()
        """Operators that consist of no others."""
        self.finished = False
        """Nothing is collected any more, wherever the mode is still on."""
        agent.watched.operator_names.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or self.finished:
            return func(*args, **kwargs)
        if is_higher_order(func):
            return run_inside(self, func, args, kwargs)
        if func not in self._whole and not types:
            # Inference mode hands `conv2d` and `linear` on whole; elsewhere autograd takes them
            # apart before they come here, into what FLOPs are known of. A subclass that has them
            # come whole (nested tensors) knows what to do with them.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
            self._whole.add(func)
        started = perf_counter()
        out = func(*args, **kwargs)
        seconds = perf_counter() - started
        self._record(func, args, kwargs, out, seconds)
        return out

    def enter_here(self) -> None:
        """Put the mode on in this thread, which takes over from another."""
        if not any(mode is self for mode in _get_current_dispatch_mode_stack()):
            self.__enter__()

    def around_call(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """See what is called now, too."""
        if not self.finished:
            renew(self)
        return contextlib.nullcontext()

    def leave(self) -> None:
        """Take the mode off in this thread, from below one that the script has entered since."""
        self.finished = True
        modes = _get_current_dispatch_mode_stack()
        if not any(mode is self for mode in modes):
            return
        above = modes[1 + next(i for i, mode in enumerate(modes) if mode is self) :]
        for mode in reversed(above):
            _pop_mode(getattr(mode, "_mode_key", None))
        self.__exit__(None, None, None)
        for mode in above:
            _push_mode(mode)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in the block is ours, not the script's."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    @guarded()
    def _record(self, func: Any, args: Any, kwargs: Any, out: Any, seconds: float) -> None:
        packet = func._overloadpacket
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        phase = self.agent.clock.phase
        kind = sync_kind(packet, args, kwargs, inputs, outputs)
        if kind is not None and phase != "optimizer":
            self._record_site(self.syncs, (kind,), seconds)
        self._note_patterns(packet, phase, inputs, outputs, seconds)
        view = func.is_view or not outputs
        if phase == "other" and not view and _is_recorded(inputs, outputs):
            self.towards_loss[0] += 1
            self.towards_loss[1] += seconds
        written = outputs or _changed(func, args, kwargs)
        moved = 0.0
        if written and not func.is_view:
            moved = float(sum(map(_bytes, inputs)) + sum(map(_bytes, written)))
        flops = attempt(flops_of, packet, args, kwargs, out, otherwise=0.0)
        dtype = next((_dtype(t) for t in inputs if t.is_floating_point()), "")
        shapes = ",".join(filter(None, map(_sizes, inputs)))
        name = packet._qualified_op_name
        self.agent.watched.operator_names.add(name)
        key = (name, shapes, dtype, phase)
        row = self.calls.setdefault(key, [0.0, 0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += flops
        row[2] += moved
        row[3] += seconds
        if not view:
            self.memory.made(outputs, phase)

    def _record_site(self, table: dict[Any, list[Any]], key: Any, seconds: float) -> None:
        site = user_site()
        if site is None:
            return
        row = table.setdefault((*key, site.file, site.line), [site, 0, 0.0])
        row[1] += 1
        row[2] += seconds

    def _note_patterns(
        self,
        packet: Any,
        phase: str,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        seconds: float,
    ) -> None:
        """Operators that tell of a habit.

        Unfused attention, products of sparse matrices kept as coordinates, convolutions over
        images stored channels-first, copies out of pageable memory.
        """
        if packet in (aten._softmax, aten._safe_softmax) and phase == "forward":
            if _is_scores(inputs[0]):
                self._record_site(self.math_attention, (), 0.0)
        elif packet in SPARSE_PRODUCTS and any(t.layout is torch.sparse_coo for t in inputs):
            self._record_site(self.coordinate_products, (phase,), seconds)
        elif packet is aten.convolution and (last := channels_last_of(inputs[0])) is not None:
            is_last = inputs[0].shape[1] <= 3 or inputs[0].is_contiguous(memory_format=last)
            self.channels_first += 0 if is_last else 1
        elif packet in (aten._to_copy, aten.copy_) and outputs:
            source = inputs[-1] if packet is aten.copy_ else inputs[0]
            if source.device.type == "cpu" and outputs[0].device.type == "cuda":
                self.pageable_copies += 0 if source.is_pinned() else 1

    def operators(self) -> list[OperatorCall]:
        """Everything seen, summed over the window."""
        return [
            OperatorCall(
                name=name,
                shapes=shapes,
                dtype=dtype,
                phase=phase,
                calls=int(row[0]),
                flops=row[1],
                bytes=row[2],
                seconds=row[3],
            )
            for (name, shapes, dtype, phase), row in self.calls.items()
        ]

    def sync_points(self, steps: int) -> list[SyncPoint]:
        """Sync points per step, most frequent first."""
        points = [
            SyncPoint(kind=kind, site=row[0], calls=row[1] / steps, seconds=row[2] / steps)
            for (kind, _, _), row in self.syncs.items()
        ]
        return sorted(points, key=lambda p: (-p.seconds, -p.calls))


def renew(mode: TorchDispatchMode) -> None:
    """Let a mode see again, where it is the topmost one of this thread.

    One that is put on inside of `inference_mode` is on no more once that block is left, which
    sets dispatch keys as they were, although it stays on the stack of modes.
    """
    modes = _get_current_dispatch_mode_stack()
    if modes and modes[-1] is mode:
        mode.__exit__(None, None, None)
        mode.__enter__()


def leave_finished() -> None:
    """Take off what is still on in this thread of windows that ended in another."""
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, OperatorMode) and mode.finished:
            mode.leave()


def _changed(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors that an operator without outputs writes in place (a fused optimizer step).

    Its gradients are declared as changed too, but are only when a loss scaler is on.
    """
    if not func._schema.is_mutable:
        return []
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    written = [
        named[argument.name]
        for argument in func._schema.arguments
        if argument.is_write and argument.name in named and argument.name != "grads"
    ]
    return [t for t in tree_leaves(written) if isinstance(t, torch.Tensor)]


def _is_recorded(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Does autograd note what was computed, for a backward to come?"""
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in inputs)
        and any(tensor.is_floating_point() for tensor in outputs)
    )


def _is_scores(tensor: torch.Tensor) -> bool:
    """Is this (batch, heads, queries, keys), or with heads folded in, queries × queries?"""
    if tensor.dim() == 4:
        return min(tensor.shape[-2:]) >= 16
    return tensor.dim() == 3 and tensor.shape[-1] == tensor.shape[-2] >= 16


def sync_kind(
    packet: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> str | None:
    """Does this operator make the host wait for the device (or would it, on a GPU)?"""
    kind = SYNC_KINDS.get(packet)
    if kind is not None:
        return kind
    copies = packet in (aten._to_copy, aten.copy_)
    if copies and inputs and outputs:
        source = inputs[-1] if packet is aten.copy_ else inputs[0]
        if source.device.type != "cpu" and outputs[0].device.type == "cpu":
            non_blocking = bool(kwargs.get("non_blocking")) or (len(args) > 2 and bool(args[2]))
            return None if non_blocking else "to-cpu"
    return None


def _sizes(tensor: torch.Tensor) -> str:
    """Its shape as `[2,3]`; nothing of a scalar, or where rows differ in length."""
    sizes = list(tensor.shape)
    if not sizes or not all(isinstance(size, int) for size in sizes):
        return ""
    return str(sizes).replace(" ", "")


def _bytes(tensor: torch.Tensor) -> int:
    """What it takes in memory; of a sparse tensor its values, with their places in eight bytes."""
    if not is_sparse(tensor):
        return int(tensor.numel() * tensor.element_size())
    return stored_elements(tensor) * (tensor.element_size() + 8 * tensor.dim())


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
