"""What is laid around the forward of a module, in a fixed order.

Several cures change one module: its answer is shared with a twin, its calls are gathered into one
batch, only some tiles are computed, and what is left runs in another runtime. Each is a layer: it
gets the arguments and the next inner call. The order is that of `Rank` however they were laid, so
cures need not know each other. Whoever holds the module, by whatever name, calls the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError
from ridgeline.realtime.rewriting.settle import settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

Inner = Callable[..., Any]
Layer = Callable[..., Any]
"""Called with the next inner call, then the arguments of the module."""


class Rank(IntEnum):
    """The order of layers, outermost first."""

    SHARE = 0
    BATCH = 1
    TURN = 2
    REGIONS = 3
    LAYOUT = 4
    WATCH = 5
    PROGRAM = 6


class LayeredForward:
    """The forward of a module with what was laid around it."""

    def __init__(self, module: nn.Module) -> None:
        self.original: Inner = module.forward
        self.layers: dict[Rank, Layer] = {}
        self._calls: dict[int, Inner] = {}

    def lay(self, rank: Rank, layer: Layer) -> None:
        """Add a layer; one rank holds one.

        Raises:
            InputError: There is one of that rank.
        """
        if rank in self.layers:
            raise InputError(f"two cures of one kind ({rank.name.lower()}) on one module")
        self.layers[rank] = layer
        self._calls.clear()

    def lift(self, rank: Rank) -> None:
        """Take a layer away."""
        del self.layers[rank]
        self._calls.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's answer, through every layer."""
        args, kwargs = settled((args, kwargs))
        return self._below(-1)(*args, **kwargs)

    def _below(self, rank: int) -> Inner:
        """The call inside of a rank."""
        found = self._calls.get(rank)
        if found is None:
            found = self._made(rank)
            self._calls[rank] = found
        return found

    def _made(self, rank: int) -> Inner:
        inner = min((one for one in self.layers if one > rank), default=None)
        if inner is None:
            return self.original
        layer, next_call = self.layers[inner], self._below(inner)
        return lambda *args, **kwargs: layer(next_call, *args, **kwargs)


def lay(module: nn.Module, rank: Rank, layer: Layer) -> None:
    """Lay one layer around the forward of a module, in place."""
    layered_forward(module, make=True).lay(rank, layer)


def lift(module: nn.Module, rank: Rank) -> None:
    """Take a layer away; with the last one the module is as it was."""
    layered = layered_forward(module)
    layered.lift(rank)
    if not layered.layers:
        del module.forward


def layered_forward(module: nn.Module, *, make: bool = False) -> LayeredForward:
    """The layers of a module.

    Raises:
        InputError: It has none, and none shall be made.
    """
    found = module.__dict__.get("forward")
    if isinstance(found, LayeredForward):
        return found
    if not make:
        raise InputError(f"{type(module).__name__} has no layers")
    made = LayeredForward(module)
    module.forward = made
    return made


def ranks_of(module: nn.Module) -> frozenset[Rank]:
    """The ranks of the layers that a module carries."""
    found = module.__dict__.get("forward")
    return frozenset(found.layers) if isinstance(found, LayeredForward) else frozenset()


@contextmanager
def bare(module: nn.Module) -> Iterator[nn.Module]:
    """Within, the module computes as it was written: what an exporter reads."""
    layered = module.__dict__.pop("forward", None)
    try:
        yield module
    finally:
        if layered is not None:
            module.forward = layered
