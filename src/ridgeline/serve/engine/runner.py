"""One forward of the model over a step's batch, in the fastest form that fits it.

Steps that only decode come again and again in a few sizes, so they can run as CUDA graphs, or on a
CPU through `torch.compile` in fixed shapes; every other step runs as the model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ridgeline.kernels.paged_attention import PackedTokens
from ridgeline.serve.adapters.adapters import Adapters
from ridgeline.serve.cache import KvPool
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.rank_work import (
    CopyBlocks,
    FinishStep,
    ProbeRanks,
    RankWork,
    compute_step,
)
from ridgeline.serve.model.batch import StepBatch
from ridgeline.serve.model.graphs import DecodeGraphs, default_sizes
from ridgeline.serve.model.loaded import ForwardOutput, LoadedModel
from ridgeline.serve.sampling.state import check_finite

LARGEST_FIXED = 256
"""Rows of the largest graph; larger batches are slow enough not to need one."""


class Followers(Protocol):
    """The other ranks of a model that is cut (`ranks.OtherRanks`), which compute all steps too."""

    def send(self, work: RankWork) -> None:
        """Tell all of them what to do next."""

    def in_step(self, what: str) -> AbstractContextManager[None]:
        """Turn whatever goes wrong meanwhile into the end of the group."""


@dataclass(slots=True)
class _BegunStep:
    """A step of which the first stage has computed its layers."""

    batch: StepBatch
    like: Tensor
    """States of the shape and dtype of those that come back."""
    came: Tensor | None = None
    """The states that came back, once they have been taken."""


class Runner:
    """Knows the model, its cache and its adapters, and tells the other ranks what it computes."""

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel,
        pool: KvPool,
        adapters: Adapters,
        max_length: int,
    ) -> None:
        self._config = config
        self._loaded = loaded
        self._pool = pool
        self._adapters = adapters
        self._max_length = max_length
        self._version = adapters.layout_version
        self._fixed = self._recorded()
        self._followers: Followers | None = None
        self._begun: dict[int, _BegunStep] = {}
        """Steps whose second half is not computed, in order."""
        self._next_number = 0
        self._adapted = False
        """Whether the adapters of the last step are still in use."""

    @property
    def overlaps(self) -> bool:
        """Whether further steps may begin before one is finished: stages work at the same time."""
        # Through NCCL both ways between two stages would wait for each other in one stream.
        return self._loaded.gate is not None and self._loaded.device.type == "cpu"

    def lead(self, followers: Followers) -> None:
        """From now on, other ranks compute the same."""
        self._followers = followers

    @property
    def fixed_bytes(self) -> int:
        """Bytes of graphs and of the tensors that keep their places for them."""
        return 0 if self._fixed is None else self._fixed.bytes

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> ForwardOutput:
        """Compute a step; the keys and values of its tokens are in the cache afterwards."""
        if self._followers is None:
            return self._computed(batch)
        self._followers.send(compute_step(batch))
        with self._followers.in_step("a step was computed"):
            return self._computed(batch)

    @torch.inference_mode()
    def begin(self, batch: StepBatch) -> int:
        """Compute the first half of a step; its number. Only where steps overlap."""
        number, self._next_number = self._next_number, self._next_number + 1
        if self._followers is None:
            self._begun[number] = self._first_half(batch)
            return number
        self._followers.send(compute_step(batch, number))
        with self._followers.in_step("a step was begun"):
            self._begun[number] = self._first_half(batch)
        return number

    @torch.inference_mode()
    def finish(self, number: int) -> ForwardOutput:
        """Compute the second half of a step that was begun."""
        if self._followers is None:
            return self._second_half(number)
        self._followers.send(FinishStep(number=number))
        with self._followers.in_step("a step was finished"):
            return self._second_half(number)

    def _first_half(self, batch: StepBatch) -> _BegunStep:
        gate, loaded, caches = self._loaded.gate, self._loaded, self._pool.layers
        assert gate is not None
        self._adapters.use(None)
        return _BegunStep(batch, gate.begin(lambda: loaded.forward(batch, caches)))

    def _second_half(self, number: int) -> ForwardOutput:
        gate, loaded, caches = self._loaded.gate, self._loaded, self._pool.layers
        assert gate is not None
        self._land(number)
        begun = self._begun.pop(number)
        assert begun.came is not None
        self._adapters.use(None)
        return gate.finish(begun.came, lambda: loaded.forward(begun.batch, caches))

    def _land(self, last: int | None = None) -> None:
        """Take the states of all that were begun, or of those up to one, in order."""
        for number, begun in self._begun.items():
            if last is not None and number > last:
                return
            if begun.came is None:
                assert self._loaded.gate is not None
                begun.came = self._loaded.gate.land(begun.like)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to), at least one pair."""
        if self._followers is not None:
            self._followers.send(CopyBlocks(pairs=tuple(pairs)))
        self._pool.copy(pairs)

    def _computed(self, batch: StepBatch) -> ForwardOutput:
        self._land()
        if self._version != self._adapters.layout_version:
            # Layers were wrapped: what was recorded would leave the adapters out.
            self._version = self._adapters.layout_version
            self._fixed = self._recorded()
        if batch.adapters is not None or self._adapted:
            self._adapters.use(batch.adapters, batch.logit_rows)
            self._adapted = batch.adapters is not None
        if self._fixed is not None and batch.seen is None and batch.axes is None:
            computed = self._fixed.run(batch)
            if computed is not None:
                return computed
        return self._loaded.forward(batch, self._pool.layers)

    @torch.inference_mode()
    def probe(self) -> None:
        """Compute one token of nobody's, in a cache of its own.

        Raises:
            NotFinite: The model gives no numbers.
            Exception: The model or its device cannot compute at all, in words of their own.
        """
        if self._followers is not None:
            self._followers.send(ProbeRanks())
        self._land()
        loaded = self._loaded
        size = self._config.block_size
        form = loaded.kv_form
        pool = KvPool(
            loaded.kv_shapes, num_blocks=1, block_size=size, form=form, device=loaded.device
        )
        self._adapters.use(None)
        computed = loaded.forward(one_prompt(1, 1, loaded), pool.layers)
        check_finite(computed.logits.amax(-1))

    def _recorded(self) -> DecodeGraphs[ForwardOutput] | None:
        device = self._loaded.device.type
        self._adapters.use(None)
        if self._loaded.recurrent is not None:
            return None
        sizes = default_sizes(min(self._config.max_sequences, LARGEST_FIXED))
        if device == "cpu" and self._config.compiled:
            from ridgeline.serve.model.graphs import CompiledDecode

            return CompiledDecode(
                self._loaded, self._pool.layers, sizes, max_context=self._max_length
            )
        if device == "cuda" and self._config.graphs and self._config.kept is None:
            return DecodeGraphs(
                self._loaded.forward,
                self._pool.layers,
                sizes,
                self._loaded.device,
                max_context=self._max_length,
            )
        return None


def one_prompt(tokens: int, blocks: int, loaded: LoadedModel) -> StepBatch:
    """A prompt of this many tokens in the first blocks."""
    device = loaded.device
    at = torch.arange(tokens, device=device)
    packed = PackedTokens(
        query_starts=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        context_lengths=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_tables=torch.arange(blocks, dtype=torch.int32, device=device)[None],
        slots=at,
        max_queries=tokens,
        max_context=tokens,
    )
    return StepBatch(tokens=at % loaded.vocab, positions=at, packed=packed, logit_rows=at[-1:])
