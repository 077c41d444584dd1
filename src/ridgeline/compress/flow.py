"""Activations on their way through the blocks, in chunks of sequences.

What a model hands each block besides (masks, rotary embeddings) is recorded once per size of chunk,
by running the model with blocks that only note their arguments.

Between blocks activations are float32. Within a block of a bfloat16 model, matmuls and attention
compute in bfloat16 where the processor does that natively, as the model itself will: three times
as fast, and what is rounded is what will be rounded when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton, set_tensor
from ridgeline.compress.watching.capture import Stop
from ridgeline.compress.watching.halfway import ForwardPass, HeldBetweenStops
from ridgeline.compress.watching.lanes import num_lanes
from ridgeline.errors import InputError, in_words

CHUNK_TOKENS = 512
"""Tokens that go through a block at once, all lanes together, but at least one sequence in each;
twice as many where activations within are bfloat16, which take half the memory."""

HELD = 4
"""Times the activations between blocks that may be held within one, between two stops."""


class Flow:
    """What flows into the next block, of all calibration sequences.

    Shapes: hidden [sequences, length, width] float32.
    """

    def __init__(self, skeleton: ModelSkeleton, tokens: Tensor) -> None:
        self._in_bfloat16 = computes_in_bfloat16(skeleton)
        self._chunk = chunk_sequences(tokens.shape[1], in_bfloat16=self._in_bfloat16)
        self._arguments: dict[int, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}
        self.hidden = self._embedded(skeleton, tokens)

    def chunks(self) -> Iterator[Tensor]:
        """Views of `hidden`; what is written into them flows on."""
        yield from self.hidden.split(self._chunk)

    def through(self, block: nn.Module, number: int, hidden: Tensor) -> Tensor:
        """The output of block `number` for one chunk."""
        args, kwargs = self._arguments[len(hidden)][number]
        lowered = torch.autocast("cpu", torch.bfloat16, enabled=self._in_bfloat16)
        with torch.no_grad(), lowered:
            output = block(hidden, *args, **kwargs)
        result = output[0] if isinstance(output, tuple) else output
        assert isinstance(result, Tensor)
        return result

    def passes(self, block: nn.Module, number: int) -> tuple[ForwardPass, ...]:
        """A way of each chunk through block `number`, which goes on where it was stopped."""
        return self.passes_of(lambda chunk: partial(self.through, block, number, chunk))

    def passes_of(
        self, forward: Callable[[Tensor], Callable[[], Tensor]]
    ) -> tuple[ForwardPass, ...]:
        """A pass of each chunk through what `forward` makes of it; every lane has equal room."""
        lanes = num_lanes()
        limit = HELD * self.hidden.nbytes // lanes
        rooms = [HeldBetweenStops(limit_bytes=limit) for _ in range(lanes)]
        return tuple(
            ForwardPass(forward(chunk), chunk, rooms[place % lanes])
            for place, chunk in enumerate(self.chunks())
        )

    def advance(self, block: nn.Module, number: int) -> None:
        """Everything goes through a block."""
        for chunk in self.chunks():
            chunk.copy_(self.through(block, number, chunk))

    def _embedded(self, skeleton: ModelSkeleton, tokens: Tensor) -> Tensor:
        embedding = skeleton.model.get_input_embeddings()
        head = skeleton.model.get_output_embeddings()
        names = {id(parameter): name for name, parameter in skeleton.model.named_parameters()}
        table = names[id(embedding.weight)]
        beside = [
            target
            for target in skeleton.pieces
            if skeleton.is_outside(target)
            and target != table
            and (head is None or target != names.get(id(head.weight)))
        ]
        skeleton.load(beside)
        hidden: Tensor | None = None
        stored = skeleton.pieces[table][0].source
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            # Only the rows that this chunk needs are read: the table can outweigh every block.
            used, numbers = part.unique(return_inverse=True)
            rows = skeleton.checkpoint.rows(stored, used).float()
            empty = embedding.weight
            set_tensor(embedding, "weight", rows)
            try:
                first, arguments = _recorded(skeleton, numbers)
            finally:
                embedding._parameters["weight"] = empty
            if len(part) not in self._arguments:
                lowered = _Lowered()
                self._arguments[len(part)] = (
                    lowered.of(arguments) if self._in_bfloat16 else arguments
                )
            if hidden is None:
                hidden = torch.empty(len(tokens), *first.shape[1:])
            hidden[start : start + len(part)] = first
        skeleton.unload(beside)
        assert hidden is not None
        return hidden


def chunk_sequences(length: int, *, in_bfloat16: bool) -> int:
    """Sequences of so many tokens that go through a block at once, in each lane."""
    return max(1, CHUNK_TOKENS * (2 if in_bfloat16 else 1) // (num_lanes() * length))


def computes_in_bfloat16(skeleton: ModelSkeleton) -> bool:
    """Whether all matrices of the blocks are bfloat16, and the processor multiplies that."""
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return native and all(
        skeleton.checkpoint.dtype(matrix.piece.source) == torch.bfloat16
        for number in range(len(skeleton.blocks))
        for matrix in matrices_of(skeleton, number)
    )


class _Lowered:
    """What a block is handed beside its activations, as a bfloat16 model hands it.

    Between float32 and bfloat16 torch multiplies slowly, and a model that is used computes rotary
    embeddings and masks in its own dtype.
    """

    def __init__(self) -> None:
        self._done: dict[int, Tensor] = {}  # blocks share them

    def of(self, value: Any) -> Any:
        """The same, with float32 tensors in bfloat16, within lists, tuples, and dictionaries."""
        if isinstance(value, Tensor):
            if value.dtype != torch.float32:
                return value
            if id(value) not in self._done:
                finite = value.clamp(min=torch.finfo(torch.bfloat16).min)  # of a mask
                self._done[id(value)] = finite.to(torch.bfloat16)
            return self._done[id(value)]
        if type(value) in {list, tuple}:
            return type(value)(self.of(one) for one in value)
        if type(value) is dict:
            return {key: self.of(one) for key, one in value.items()}
        return value


def _recorded(
    skeleton: ModelSkeleton, tokens: Tensor
) -> tuple[Tensor, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """What flows into the first block, and each block's other arguments."""
    found = []
    for in_tuple in (False, True):
        seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        error = _run_recording(skeleton, tokens, seen, in_tuple=in_tuple)
        shapes = {getattr(hidden, "shape", None) for hidden, _, _ in seen}
        alike = len(shapes) == 1 and None not in shapes
        if error is None and len(seen) == len(skeleton.blocks) and alike:
            return seen[0][0].clone(), [(args, kwargs) for _, args, kwargs in seen]
        what = f"{len(seen)} of {len(skeleton.blocks)} blocks were called"
        if error is not None:
            what = f"{what}, then {type(error).__name__}: {in_words(error)}"
        found.append(f"given {'tuples' if in_tuple else 'tensors'}, {what}")
    raise InputError(
        f"{skeleton.checkpoint.directory}: the blocks of a {type(skeleton.model).__name__} do not "
        "follow one another with one tensor between them, so it cannot be compressed block by "
        f"block ({'; '.join(found)})"
    )


def _run_recording(
    skeleton: ModelSkeleton,
    tokens: Tensor,
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]],
    *,
    in_tuple: bool,
) -> Exception | None:
    """Run the model on blocks that note what they are given; what it raised, if it did."""
    last = len(skeleton.blocks) - 1

    def recording(number: int) -> Any:
        def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((hidden, args, kwargs))
            if number == last:
                raise Stop
            return (hidden,) if in_tuple else hidden

        return forward

    for number, block in enumerate(skeleton.blocks):
        block.forward = recording(number)
    try:
        with torch.no_grad():
            skeleton.model.base_model(tokens, use_cache=False)
    except Stop:
        return None
    except Exception as error:  # any family's code runs here; the caller says what it raised
        return error
    finally:
        for block in skeleton.blocks:
            del block.forward
    return None
