"""Decode steps in a few fixed shapes: as CUDA graphs, or for `torch.compile` on a CPU.

A decode step of n sequences runs as one of `sizes` ≥ n rows. Its inputs are copied into tensors
that stay where they are; the rows beyond n are padding: context of length 0, slot -1, so they read
and write nothing. All that shapes a launch is a constant of the object or follows from the size:
the bound of the context, the width of the block tables, no adapters. A batch that needs another
constant is not covered.

n sequences, T rows after padding, M blocks of the longest context, V words.

`CompiledDecode` runs the same shapes through `torch.compile` on a CPU. Inductor fuses what lies
between our own operators, which it takes as they are. A shape is compiled once, when the engine
starts; nothing may fall back to eager in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ridgeline.errors import InputError, in_words
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens
from ridgeline.serve.model.batch import StepBatch
from ridgeline.serve.model.loaded import ForwardOutput, LoadedModel

C = TypeVar("C")
"""What a forward returns: a dataclass of tensors, each with one line per row, as
`ForwardOutput` is."""
_WARM_UPS = 2
"""Runs before a capture: kernels are compiled, libraries take their workspaces."""
D = TypeVar("D")
_OPTIONS = {"cpp.threads": 1}
"""What Inductor fuses is a row per sequence: starting threads for it costs more than it takes."""


def default_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, then steps of at most a half up to `largest`: little padding, few graphs.

    >>> default_sizes(100)
    (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    """
    powers = [2**power for power in range(largest.bit_length())]
    halves = [power * 3 // 2 for power in powers if power >= 16]
    return tuple(sorted({size for size in (*powers, *halves, largest) if size <= largest}))


class DecodeGraphs(Generic[C]):
    """Runs decode-only batches in fixed shapes; everything is recorded when it is made."""

    @torch.inference_mode()
    def __init__(
        self,
        forward: Callable[[StepBatch, list[LayerCache]], C],
        caches: list[LayerCache],
        sizes: Sequence[int],
        device: torch.device,
        *,
        max_context: int,
        capture: bool = True,
    ) -> None:
        """Run each size, largest first, and record it.

        Args:
            forward: The model, or a compiled one. It may not wait for the device, and what it does
                may depend on shapes and on `PackedTokens`'s integers only.
            caches: Of all layers; they may never be replaced.
            sizes: Numbers of rows.
            device: Of model and caches.
            max_context: Longest context of any batch to come.
            capture: As CUDA graphs; off: call `forward` with the fixed tensors each time.

        Raises:
            InputError: The model waits for the device within a step, so it cannot be captured.
        """
        assert sizes
        self._forward = forward
        self._caches = caches
        self._sizes = tuple(sorted(sizes))
        self._device = device
        self._max_context = max_context
        self._inputs = self._fixed_inputs()
        self._batches = {size: self._of_size(size) for size in self._sizes}
        self._graphs: dict[int, Any] = {}
        self._outputs: C | None = None
        """The outputs of the largest size; every graph leaves its result at their beginning."""
        self._graph_bytes = 0
        self._clear(0)
        if capture:
            self._capture_all()
        else:
            for size in reversed(self._sizes):
                forward(self._batches[size], caches)

    @property
    def bytes(self) -> int:
        """Bytes of fixed tensors, and of what the captures took from the device."""
        kept = [*_tensors(self._inputs), *_tensors(self._inputs.packed)]
        if self._outputs is not None:
            kept += _tensors(self._outputs)
        return sum(tensor.nbytes for tensor in kept) + self._graph_bytes

    def size_for(self, batch: StepBatch) -> int | None:
        """Rows that a batch is padded to; None: not covered."""
        packed = batch.packed
        num_rows = batch.tokens.shape[0]
        covered = (
            packed.max_queries == 1
            and packed.context_lengths.shape[0] == num_rows
            and batch.logit_rows.shape[0] == num_rows
            and batch.adapters is None
            and packed.max_context <= self._max_context
        )
        if not covered:
            return None
        return next((size for size in self._sizes if size >= num_rows), None)

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> C | None:
        """What `forward(batch)` gives, valid until the next call; None: not covered.

        A covered batch has one token of each sequence, with logits, in the order of the sequences.
        """
        size = self.size_for(batch)
        if size is None:
            return None
        num_rows = batch.tokens.shape[0]
        self._fill(batch, num_rows)
        if num_rows < size:
            self._clear(num_rows)
        if size not in self._graphs:
            return _first_rows(self._forward(self._batches[size], self._caches), num_rows)
        self._graphs[size].replay()
        assert self._outputs is not None
        return _first_rows(self._outputs, num_rows)

    def _fixed_inputs(self) -> StepBatch:
        largest = self._sizes[-1]
        block = self._caches[0].keys.shape[2]

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        return StepBatch(
            tokens=zeros(largest, dtype=torch.int64),
            positions=zeros(largest, dtype=torch.int64),
            packed=PackedTokens(
                query_starts=torch.arange(largest + 1, dtype=torch.int32, device=self._device),
                context_lengths=zeros(largest, dtype=torch.int32),
                block_tables=zeros(largest, -(-self._max_context // block), dtype=torch.int32),
                slots=zeros(largest, dtype=torch.int64),
                max_queries=1,
                max_context=self._max_context,
            ),
            logit_rows=torch.arange(largest, device=self._device),
        )

    def _of_size(self, size: int) -> StepBatch:
        """The first rows of the fixed inputs, as the same tensor objects at each call."""
        packed = _first_rows(self._inputs.packed, size)
        starts = self._inputs.packed.query_starts[: size + 1]
        return replace(_first_rows(self._inputs, size), packed=replace(packed, query_starts=starts))

    def _fill(self, batch: StepBatch, num_rows: int) -> None:
        kept, given = self._inputs, batch
        kept.tokens[:num_rows].copy_(given.tokens)
        kept.positions[:num_rows].copy_(given.positions)
        kept.packed.context_lengths[:num_rows].copy_(given.packed.context_lengths)
        kept.packed.slots[:num_rows].copy_(given.packed.slots)
        width = min(given.packed.block_tables.shape[1], kept.packed.block_tables.shape[1])
        table = given.packed.block_tables[:, :width]  # entries beyond a context are not read
        kept.packed.block_tables[:num_rows, :width].copy_(table)

    def _clear(self, first: int) -> None:
        """Make padding of the rows from `first` on. Their tokens and positions may stay."""
        self._inputs.packed.context_lengths[first:].zero_()
        self._inputs.packed.slots[first:].fill_(-1)

    def _capture_all(self) -> None:
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for size in reversed(self._sizes):
                for _ in range(_WARM_UPS):
                    computed = self._forward(self._batches[size], self._caches)
                if self._outputs is None:
                    self._outputs = _empty_like(computed)
                del computed
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free_before, _ = torch.cuda.mem_get_info(self._device)
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self._sizes):
            self._graphs[size] = self._captured(size, pool)
        torch.cuda.synchronize(self._device)
        free_after, _ = torch.cuda.mem_get_info(self._device)
        self._graph_bytes = max(0, free_before - free_after)

    def _captured(self, size: int, pool: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool):
                _copy_rows(self._forward(self._batches[size], self._caches), self._outputs)
        except RuntimeError as error:
            raise InputError(
                "a decode step of this model cannot be recorded as a CUDA graph "
                f"({in_words(error)}); use --no-graphs"
            ) from error
        return graph


def _tensors(of: Any) -> list[Tensor]:
    values = (getattr(of, one.name) for one in fields(of))
    return [value for value in values if isinstance(value, Tensor)]


def _first_rows(of: D, num_rows: int) -> D:
    """The same dataclass with the first rows of its tensors."""
    cut = {
        one.name: getattr(of, one.name)[:num_rows]
        for one in fields(of)  # type: ignore[arg-type]  # any dataclass
        if isinstance(getattr(of, one.name), Tensor)
    }
    return replace(of, **cut)  # type: ignore[type-var]


def _empty_like(of: D) -> D:
    new = {
        one.name: torch.empty_like(getattr(of, one.name))
        for one in fields(of)  # type: ignore[arg-type]  # any dataclass
        if isinstance(getattr(of, one.name), Tensor)
    }
    return replace(of, **new)  # type: ignore[type-var]


def _copy_rows(origin: Any, target: Any) -> None:
    for source, kept in zip(_tensors(origin), _tensors(target), strict=True):
        kept[: source.shape[0]].copy_(source)


class CompiledDecode(DecodeGraphs[ForwardOutput]):
    """`DecodeGraphs` over a compiled forward.

    Padding has a context of one token (whatever lies in block 0) where graphs have none: the C++
    kernel refuses a query without a context.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        caches: list[LayerCache],
        sizes: Sequence[int],
        *,
        max_context: int,
    ) -> None:
        super().__init__(
            _compiled(loaded, len(sizes)),
            caches,
            sizes,
            loaded.device,
            max_context=max_context,
            capture=False,
        )

    def _clear(self, first: int) -> None:
        super()._clear(first)
        self._inputs.packed.context_lengths[first:].fill_(1)


def _compiled(
    loaded: LoadedModel, num_sizes: int
) -> Callable[[StepBatch, list[LayerCache]], ForwardOutput]:
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, num_sizes + 1)
    found: Callable[[StepBatch, list[LayerCache]], ForwardOutput] = torch.compile(
        loaded.forward, dynamic=False, fullgraph=True, options=dict(_OPTIONS)
    )
    return found
