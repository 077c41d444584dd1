"""Layers that keep a state of fixed size instead of keys and values, over a packed step.

Linear attention, state spaces and short convolutions (Qwen3-Next and 3.5, LFM2, Granite 4, Falcon
H1, Nemotron H, Jamba) read the state that a sequence's tokens have left, and replace it. Their
modules compute rows of sequences, [B, T, hidden], and know nothing of packed tokens. So a module
with a state gets each sequence of a step by itself, and those that decode together as one batch,
with a cache that holds the states of just these.

The states themselves lie in a `StatePool` (`states.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)
from transformers.utils import logging as notices

from ridgeline.kernels.paged_attention import LayerCache
from ridgeline.serve.model.batch import SequenceSpan
from ridgeline.serve.model.selective_scan import ContinuedScan, continued
from ridgeline.serve.model.states import NOWHERE, RECURRENT, StatePool, States, fill, states_in

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What models call their cache; transformers 5.24 renamed the others, and warns of them."""


def has_states(config: Any) -> bool:
    """Whether a model of this configuration has layers that keep a state."""
    layers = DynamicCache(config=config).layers
    return any(isinstance(one, LinearAttentionCacheLayerMixin) for one in layers)


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences of a step with as many tokens each, that a module takes as one batch."""

    at: Tensor
    """The places of their tokens in the step, [B, T]."""
    read: Tensor | None
    """Where their states are, [B]; None: they begin."""
    write: Tensor | None
    """Where the new ones go, [B]; None: nowhere."""


@dataclass(frozen=True, slots=True)
class _StatesInStep:
    """Who is in a forward, and where their states are."""

    groups: list[_Group]
    pool: StatePool | None
    """Where states are kept; None: all begin their sequences here."""


class _StepCache(DynamicCache):
    """What the model takes for its cache, and what stays empty.

    Keys and values pass through, on their way to the blocks; modules with states do not see it.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Give back what came."""
        return key_states, value_states


class _OneLayer(Cache):
    """The states of some sequences in one layer, under whatever index they are asked for."""

    def __init__(self, count: int, layer: LinearAttentionLayer) -> None:
        super().__init__(layers=[layer] * count)


class _Mixer:
    """Stands in for the forward of a module with a state."""

    def __init__(self, module: nn.Module, layer: int, owner: RecurrentLayers) -> None:
        self._scan = ContinuedScan()
        self._forward: Callable[..., Any] = continued(module, self._scan) or module.forward
        self._signature = inspect.signature(module.forward)
        self._layer = layer
        self._owner = owner
        self._continues: bool | None = None
        """Whether several tokens at once go on from states; None: none have come yet."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        step = self._owner.step
        if step is None:
            return self._forward(*args, **kwargs)
        given = self._signature.bind(*args, **kwargs).arguments
        named = {
            name: value
            for name, value in given.items()
            if self._signature.parameters[name].kind is not inspect.Parameter.VAR_KEYWORD
        }
        states = next(value for value in named.values() if isinstance(value, Tensor))
        out: Tensor | None = None
        rest: tuple[Any, ...] | None = None
        for group in step.groups:
            found = self._of(group, named, states.shape[1], step.pool)
            if isinstance(found, tuple):
                found, rest = found[0], found[1:]
            if out is None:
                out = found.new_empty((1, states.shape[1], *found.shape[2:]))
            out[0].index_copy_(0, group.at.flatten(), found.flatten(0, 1))
        assert out is not None
        return out if rest is None else (out, *rest)

    def _of(self, group: _Group, named: dict[str, Any], total: int, pool: StatePool | None) -> Any:
        """The module's output for some sequences, [B, T, hidden]."""
        states: States = {}
        if group.read is not None:
            assert pool is not None
            states = pool.read(self._layer, group.read)
        if (
            group.read is None
            or group.at.shape[1] == 1
            or self._goes_on(group, named, total, states)
        ):
            found, left = self._computed(group.at, named, total, states)
        else:
            found, left = self._one_by_one(group.at, named, total, states)
        if group.write is not None:
            assert pool is not None
            pool.write(self._layer, group.write, left)
        return found

    def _computed(
        self, at: Tensor, named: dict[str, Any], total: int, states: States
    ) -> tuple[Any, States]:
        """The output for the tokens at some places of the step, [B, T], and the states after them.

        Without states they begin their sequences.
        """

        def rows(tensor: Tensor) -> Tensor:
            packed = tensor.ndim > 1 and tensor.shape[0] == 1 and tensor.shape[1] == total
            if not packed:
                return tensor
            return tensor[0].index_select(0, at.flatten()).unflatten(0, at.shape)

        layer = LinearAttentionLayer(self._owner.states_of(self._layer))
        fill(layer, states)
        cache = _OneLayer(self._owner.count, layer)
        arguments = {
            name: cache
            if isinstance(value, Cache)
            else None
            if name == "attention_mask"
            else tree_map_only(Tensor, rows, value)
            for name, value in named.items()
        }
        self._scan.first = states.get(RECURRENT)
        found = self._forward(**arguments)
        self._scan.first = None
        return found, states_in(layer)

    def _one_by_one(
        self, at: Tensor, named: dict[str, Any], total: int, states: States
    ) -> tuple[Any, States]:
        """What `_computed` gives, with each token of a sequence taken by itself."""
        found = []
        for place in at.split(1, 1):
            out, states = self._computed(place, named, total, states)
            found.append(out[0] if isinstance(out, tuple) else out)
        return torch.cat(found, 1), states

    def _goes_on(self, group: _Group, named: dict[str, Any], total: int, states: States) -> bool:
        """Whether several tokens at once read what is kept; asked of the module at its first chunk.

        Mamba's scan in transformers 5.23 does not; `selective_scan` stands in for it.
        """
        if self._continues is None:
            found = [
                self._computed(
                    group.at, named, total, {name: one.clone() for name, one in of.items()}
                )
                for of in (states, *({**states, name: states[name] + 1} for name in states))
            ]
            outs = [out[0] if isinstance(out, tuple) else out for out, _ in found]
            self._continues = not any(torch.equal(outs[0], one) for one in outs[1:])
        return self._continues


class RecurrentLayers:
    """The layers of a model that keep a state; from now on they take packed steps, too.

    Args:
        model: In evaluation; its modules with states are changed in place.
        vocab: Its number of words.
    """

    def __init__(self, model: nn.Module, vocab: int) -> None:
        self.step: _StatesInStep | None = None
        """What is being computed; None: the model is called as anybody would call it."""
        takes = inspect.signature(model.forward).parameters
        self._keyword = next(name for name in CACHE_NAMES if name in takes)
        found = _Traced(model)
        self._device = next(model.parameters()).device
        tokens = torch.arange(3, device=self._device) % vocab
        quiet = _no_advice() if self._device.type == "cpu" else nullcontext()
        with torch.inference_mode(), found, quiet:
            for part in (tokens, tokens[:1]):
                model(input_ids=part[None], **{self._keyword: found.cache}, use_cache=True)
        layers = found.cache.layers
        self.count = len(layers)
        self.attending = tuple(
            index for index, one in enumerate(layers) if getattr(one, "keys", None) is not None
        )
        """The layers that keep keys and values."""
        self.kept = StatePool()
        """The states of the sequences that an engine runs."""
        self.bytes_per_sequence = 0
        """The size of one sequence's states, in both of its places."""
        self._cache = _StepCache(config=model.config)  # type: ignore[arg-type]
        self._states: dict[int, int] = {}
        for index, module in found.modules.items():
            layer = layers[index]
            self._states[index] = layer.number_of_states
            self.bytes_per_sequence += 2 * sum(one.nbytes for one in states_in(layer).values())
            module.forward = _Mixer(module, index, self)  # type: ignore[method-assign,assignment]

    def by_layer(self, caches: list[LayerCache]) -> dict[int, LayerCache]:
        """The caches of keys and values by the index of the layer that each belongs to."""
        return dict(zip(self.attending, caches, strict=True))

    def new_pool(self) -> StatePool:
        """Room for states that nobody else has."""
        return StatePool()

    def states_of(self, layer: int) -> int:
        """The number of states of each kind that a layer keeps."""
        return self._states[layer]

    @contextmanager
    def computing(
        self, spans: Sequence[SequenceSpan], pool: StatePool | None
    ) -> Iterator[dict[str, Any]]:
        """Let the model compute a step, with the keywords that are given; states count at the end.

        Args:
            spans: Who is in it.
            pool: Where their states are; None: all begin here, and nothing is kept.
        """
        read, write = (None, None) if pool is None else pool.places(spans)
        self.step = _StatesInStep(_groups(spans, read, write, self._device), pool)
        try:
            yield {self._keyword: self._cache}
        finally:
            self.step = None
        if pool is not None and write is not None:
            pool.note(spans, write)


@contextmanager
def _no_advice() -> Iterator[None]:
    """Let transformers say once, and here unheard, which kernels for GPUs are not installed."""
    before = notices.get_verbosity()
    notices.set_verbosity_error()
    try:
        yield
    finally:
        notices.set_verbosity(before)


class _Traced:
    """Finds which module updates the states of which layer, while a model runs."""

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[int, nn.Module] = {}
        self._running: list[nn.Module] = []
        self._handles: list[Any] = []
        self._model = model
        traced = self

        class Noting(DynamicCache):
            def update_conv_state(
                self, conv_states: Tensor, layer_idx: int, *others: Any, **options: Any
            ) -> Any:
                traced.modules[layer_idx] = traced._running[-1]
                return super().update_conv_state(conv_states, layer_idx, *others, **options)

            def update_recurrent_state(
                self, recurrent_states: Tensor, layer_idx: int, *others: Any, **options: Any
            ) -> Any:
                traced.modules[layer_idx] = traced._running[-1]
                return super().update_recurrent_state(
                    recurrent_states, layer_idx, *others, **options
                )

        self.cache = Noting(config=model.config)  # type: ignore[arg-type]

    def __enter__(self) -> None:
        for module in self._model.modules():
            self._handles.append(
                module.register_forward_pre_hook(lambda one, _: self._running.append(one))
            )
            self._handles.append(
                module.register_forward_hook(lambda *_: self._running.pop() and None)
            )

    def __exit__(self, *_error: object) -> None:
        for handle in self._handles:
            handle.remove()


def _groups(
    spans: Sequence[SequenceSpan],
    read: list[int] | None,
    write: list[int] | None,
    device: torch.device,
) -> list[_Group]:
    """All that decode together, and everyone else alone."""
    decode = [
        index
        for index, span in enumerate(spans)
        if span.count == 1 and read is not None and read[index] != NOWHERE
    ]
    together = set(decode)
    members = [[index] for index in range(len(spans)) if index not in together]
    if decode:
        members.append(decode)

    def places(of: list[int] | None, group: list[int]) -> Tensor | None:
        found = [] if of is None else [of[index] for index in group]
        return None if NOWHERE in found or not found else torch.tensor(found, device=device)

    def tokens(group: list[int]) -> Tensor:
        each = [spans[index] for index in group]
        rows = [range(one.first, one.first + one.count) for one in each]
        return torch.tensor([list(row) for row in rows], device=device)

    return [_Group(tokens(one), places(read, one), places(write, one)) for one in members]
