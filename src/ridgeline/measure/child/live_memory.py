"""Which tensors are alive: bytes of storage by what they are for, over a few steps.

Storages are followed through weak references, so what is freed counts no more.
"""

from __future__ import annotations

import weakref
from time import perf_counter, time_ns

import torch
from torch.utils._pytree import tree_leaves

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.anatomy import buffers, weights
from ridgeline.measure.child.guard import attempt, guarded
from ridgeline.measure.wire import MemorySample

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "other")
_MAX_SAMPLES = 400


class LiveMemory:
    """Live storage bytes by category; tells the split at the peak and a timeline."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.started = perf_counter()
        self.live = dict.fromkeys(CATEGORIES, 0)
        self.peak = dict(self.live)
        self.peak_total = 0
        self.samples: list[MemorySample] = []
        self.freed: list[tuple[int, int]] = []
        """When (nanoseconds since the epoch) a storage was freed, and its bytes."""
        self._category: dict[int, str] = {}
        self._open = True
        self._take_stock()

    def _take_stock(self) -> None:
        """Count what is alive already: weights, gradients, optimizer state."""
        for watch in self.agent.watched.models.values():
            module = watch.module()
            if module is not None:
                attempt(self._count_weights, module, otherwise=None)
        for stepped in self.agent.watched.optimizers.values():
            optimizer = stepped.optimizer()
            if optimizer is not None:
                attempt(self._count_state, optimizer, otherwise=None)
        self._note("other", force=True)

    def _count_weights(self, module: torch.nn.Module) -> None:
        for weight in weights(module):
            self._add(weight, "weights")
            if weight.grad is not None:
                self._add(weight.grad, "gradients")
        for buffer in buffers(module):
            self._add(buffer, "weights")

    def _count_state(self, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for value in tree_leaves(state):
                if isinstance(value, torch.Tensor):
                    self._add(value, "optimizer")

    def made(self, outputs: list[torch.Tensor], phase: str) -> None:
        """New tensors came out of an operator."""
        category = {"optimizer": "optimizer", "data": "other"}.get(phase, "activations")
        grew = False
        for tensor in outputs:
            grew |= self._add(tensor, category)
        if grew:
            self._note(phase)

    @guarded()
    def retag_gradient(self, parameter: torch.Tensor) -> None:
        """A parameter's gradient is whole: what was a temporary is a gradient now."""
        if parameter.grad is None:
            return
        try:
            key = parameter.grad.untyped_storage()._cdata
        except RuntimeError:
            return
        category = self._category.get(key)
        if category is None or category == "gradients":
            return
        size = parameter.grad.untyped_storage().nbytes()
        self._category[key] = "gradients"
        self.live[category] -= size
        self.live["gradients"] += size

    def close(self) -> None:
        """Stop following; late finalizers are ignored."""
        self._open = False

    def _add(self, tensor: torch.Tensor, category: str) -> bool:
        try:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
        except RuntimeError:
            return False  # sparse, meta and wrapper tensors have no storage to follow
        if key in self._category or size == 0 or tensor.device.type == "meta":
            return False
        self._category[key] = category
        self.live[category] += size
        weakref.finalize(storage, self._gone, key, size).atexit = False
        return True

    def _gone(self, key: int, size: int) -> None:
        category = self._category.pop(key, None)
        if category is not None and self._open:
            self.live[category] -= size
            self.freed.append((time_ns(), size))

    def _note(self, phase: str, force: bool = False) -> None:
        total = sum(self.live.values())
        if total > self.peak_total:
            self.peak_total = total
            self.peak = dict(self.live)
        if force or len(self.samples) < _MAX_SAMPLES * 8:
            self.samples.append(
                MemorySample(
                    seconds=perf_counter() - self.started,
                    phase=phase,
                    **{f"{name}_bytes": self.live[name] for name in CATEGORIES},
                )
            )

    def timeline(self) -> list[MemorySample]:
        """At most a few hundred samples; the peak is kept."""
        stride = max(1, len(self.samples) // _MAX_SAMPLES)
        kept = self.samples[::stride]
        highest = max(self.samples, key=lambda s: s.total_bytes, default=None)
        if highest is not None and highest not in kept:
            kept = sorted([*kept, highest], key=lambda s: s.seconds)
        return kept
