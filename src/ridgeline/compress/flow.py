"""Activations on their way through the blocks, in chunks of sequences.

What a model hands each block besides (masks, rotary embeddings) is recorded by running the model
with blocks that only note their arguments: once per size of chunk, and for every chunk where it
depends on the tokens.

Between blocks activations are float32. Within a block of a bfloat16 model, matmuls and attention
compute in bfloat16 where the processor does that natively, as the model itself will: three times
as fast, and what is rounded is what will be rounded when it is used. Linear layers' products are
in bytes where that is faster still (`watching/byte_products.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton, set_tensor
from ridgeline.compress.watching import byte_products
from ridgeline.compress.watching.attention import BlockKernels
from ridgeline.compress.watching.capture import Stop
from ridgeline.compress.watching.halfway import ForwardPass, HeldBetweenStops
from ridgeline.compress.watching.lanes import num_lanes
from ridgeline.errors import InputError, in_words

CHUNK_TOKENS = 512
"""Tokens that go through a block at once, all lanes together, but at least one sequence in each.
Where activations within are bfloat16, each lane has twice as many: with half as many, what
does not compute (calls, watching) takes 6 % of the CPU time of two lanes."""

Arguments = list[tuple[tuple[Any, ...], dict[str, Any]]]
"""What each block is handed beside activations."""

LENGTHS = (None, 1, 2, 3)
"""How blocks give their activations: alone, or first in a tuple of that length."""

NOTHING = object()
"""What blocks that only note their arguments give beside activations."""

HELD = 4
"""Times the activations between blocks that may be held within one, between two stops."""


class Flow:
    """What flows into the next block, of all calibration sequences.

    Shapes: hidden [sequences, length, width] float32.
    """

    def __init__(self, skeleton: ModelSkeleton, tokens: Tensor) -> None:
        self.in_bfloat16 = computes_in_bfloat16(skeleton)
        """Whether matmuls and attention within blocks compute in bfloat16."""
        in_bytes = self.in_bfloat16 and byte_products.are_faster()
        self._products = byte_products.ByteProducts() if in_bytes else None
        self._chunk = chunk_sequences(tokens.shape[1], in_bfloat16=self.in_bfloat16)
        self._arguments: dict[int, Arguments] = {}  # by the length of a chunk
        self._own: dict[int, Arguments] = {}  # by a chunk's beginning, where they depend on tokens
        self.length: int | None = None
        """The length of the tuple in which blocks give their activations; None: they are alone."""
        self.hidden = self._embedded(skeleton, tokens)

    def chunks(self) -> Iterator[Tensor]:
        """Views of `hidden`; what is written into them flows on."""
        yield from self.hidden.split(self._chunk)

    def through(self, block: nn.Module, number: int, hidden: Tensor) -> Tensor:
        """The output of block `number` for one chunk."""
        own = self._own.get(hidden.storage_offset() // hidden.stride(0))
        args, kwargs = (own or self._arguments[len(hidden)])[number]
        with torch.no_grad(), self._lowered():
            output = block(hidden, *args, **kwargs)
        result = output[0] if isinstance(output, tuple | list) else output
        if not isinstance(result, Tensor):
            raise InputError(
                f"a {type(block).__name__} gives a {type(result).__name__} where a tensor of "
                "activations is expected, so its model cannot be compressed block by block"
            )
        return result

    @contextmanager
    def _lowered(self) -> Iterator[None]:
        if not self.in_bfloat16:
            yield
            return
        with torch.autocast("cpu", torch.bfloat16), BlockKernels(self._products):
            yield

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
        head = skeleton.model.get_output_embeddings()
        names = {id(parameter): name for name, parameter in skeleton.model.named_parameters()}
        tables = tables_of(skeleton)
        beside = [
            target
            for target in skeleton.pieces
            if skeleton.is_outside(target)
            and target not in tables
            and (head is None or target != names.get(id(head.weight)))
        ]
        skeleton.load(beside)
        hidden: Tensor | None = None
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            with _rows_read(skeleton, tables):
                first, arguments, self.length = _recorded(skeleton, part)
            self._keep(arguments, start, len(part))
            if hidden is None:
                hidden = torch.empty(len(tokens), *first.shape[1:])
            if len(first) != len(part):
                raise InputError(
                    f"{skeleton.checkpoint.directory}: the blocks of a "
                    f"{type(skeleton.model).__name__} hand on {list(first.shape)} of {len(part)} "
                    "sequences, so it cannot be compressed block by block"
                )
            hidden[start : start + len(part)] = first
        skeleton.unload(beside)
        assert hidden is not None
        return hidden

    def _keep(self, arguments: Arguments, start: int, length: int) -> None:
        """Note what blocks are handed beside activations, once where all chunks have the same.

        Embeddings of each layer (Gemma 4) depend on the tokens, and so does what blocks will write
        into an empty dictionary that they share: keys and values for those after them.
        """
        arguments = _Lowered().of(arguments) if self.in_bfloat16 else arguments
        shared = self._arguments.setdefault(length, arguments)
        if not _same(_in_tuples(shared), _in_tuples(arguments)):
            self._own[start] = arguments


def given(hidden: Tensor, length: int | None) -> Any:
    """What a block gives that hands on these activations, in a tuple of that length or alone."""
    return hidden if length is None else (hidden, *[NOTHING] * (length - 1))


def tables_of(skeleton: ModelSkeleton) -> dict[str, nn.Module]:
    """The embeddings outside of blocks, by the names of their weights: what numbers look up."""
    kinds = {nn.Embedding, type(skeleton.model.get_input_embeddings())}
    return {
        f"{name}.weight": module
        for name, module in skeleton.model.named_modules()
        if type(module) in kinds and skeleton.is_outside(name) and _is_whole(skeleton, name)
    }


def _is_whole(skeleton: ModelSkeleton, name: str) -> bool:
    pieces = skeleton.pieces.get(f"{name}.weight", [])
    return [(piece.expert, piece.rows) for piece in pieces] == [(None, None)]


@contextmanager
def _rows_read(skeleton: ModelSkeleton, tables: dict[str, nn.Module]) -> Iterator[None]:
    """Within, a table has the rows that are looked up, read when they are.

    A vocabulary's table can outweigh every block, and Gemma 4's of every layer still more. Until
    then one number stands for all of it, on the device of the rest (Llama 4 asks for that).
    """
    hooks = []
    empty = {target: skeleton.value(target) for target in tables}
    for target, module in tables.items():
        stored = skeleton.pieces[target][0].source
        instead = torch.zeros(1, 1).expand(empty[target].shape)
        set_tensor(module, "weight", instead)

        def before(module: Any, given: tuple[Any, ...], stored: str = stored) -> tuple[Any, ...]:
            used, numbers = given[0].unique(return_inverse=True)
            set_tensor(module, "weight", skeleton.checkpoint.rows(stored, used).float())
            return (numbers, *given[1:])

        def after(module: Any, _given: Any, _made: Any, instead: Tensor = instead) -> None:
            set_tensor(module, "weight", instead)

        hooks += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for target, module in tables.items():
            module._parameters["weight"] = empty[target]  # which another module may be tied to


def _holds(wanted: object, value: Any) -> bool:
    """Whether an object lies in lists, tuples and dictionaries."""
    if isinstance(value, list | tuple):
        return any(_holds(wanted, one) for one in value)
    if isinstance(value, dict):
        return any(_holds(wanted, one) for one in value.values())
    return value is wanted


def _in_tuples(arguments: Arguments) -> list[tuple[Any, ...]]:
    return [(args, *kwargs.items()) for args, kwargs in arguments]


def _same(one: Any, other: Any) -> bool:
    """Whether two values that a model hands its blocks are equal; objects of its own are taken so.

    Lists, tuples and dictionaries are looked into; two empty dictionaries will be filled otherwise.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.shape == other.shape and torch.equal(one, other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        alike = one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        return alike and (one is other or bool(one))
    return True


def chunk_sequences(length: int, *, in_bfloat16: bool) -> int:
    """Sequences of so many tokens that go through a block at once, in each lane."""
    tokens = 2 * CHUNK_TOKENS if in_bfloat16 else CHUNK_TOKENS // num_lanes()
    return max(1, tokens // length)


def computes_in_bfloat16(skeleton: ModelSkeleton) -> bool:
    """Whether all matrices of the blocks are bfloat16, and the processor multiplies that."""
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return native and all(
        skeleton.checkpoint.dtype(matrix.piece.source) == torch.bfloat16
        for number in range(len(skeleton.blocks))
        for matrix in matrices_of(skeleton, number)
    )


def arithmetic_of(skeleton: ModelSkeleton) -> str:
    """In what blocks multiply, in words."""
    if computes_in_bfloat16(skeleton):
        products = "bfloat16 and bytes" if byte_products.are_faster() else "bfloat16"
        return f"{products}, with sums in float32"
    return "float32"


class _Lowered:
    """What a block is handed beside its activations, as a bfloat16 model hands it.

    Between float32 and bfloat16 torch multiplies slowly, and a model that is used computes rotary
    embeddings and masks in its own dtype.
    """

    def __init__(self) -> None:
        self._done: dict[int, Tensor] = {}  # blocks share them

    def of(self, value: Any) -> Any:
        """A value with float32 tensors in bfloat16, also inside lists, tuples, dictionaries."""
        if isinstance(value, Tensor):
            if value.dtype != torch.float32:
                return value
            if id(value) not in self._done:
                finite = value.clamp(min=torch.finfo(torch.bfloat16).min)  # of a mask
                self._done[id(value)] = finite.to(torch.bfloat16)
            return self._done[id(value)]
        if type(value) in {list, tuple}:
            return type(value)(self.of(one) for one in value)
        if type(value) is dict and value:
            return {key: self.of(one) for key, one in value.items()}
        return value  # also an empty dictionary, which blocks share and write into


def _recorded(skeleton: ModelSkeleton, tokens: Tensor) -> tuple[Tensor, Arguments, int | None]:
    """What flows into the first block, each block's other arguments, and its tuple's length."""
    furthest, why = -1, ""
    for length in LENGTHS:
        seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        error = _run_recording(skeleton, tokens, seen, length)
        shapes = {getattr(hidden, "shape", None) for hidden, _, _ in seen}
        alike = len(shapes) == 1 and None not in shapes
        handed_on = any(_holds(NOTHING, (args, kwargs)) for _, args, kwargs in seen)
        if error is None and len(seen) == len(skeleton.blocks) and alike and not handed_on:
            return seen[0][0].clone(), [(args, kwargs) for _, args, kwargs in seen], length
        if len(seen) > furthest:
            furthest, why = len(seen), f"{len(seen)} of {len(skeleton.blocks)} blocks were called"
            if error is not None:
                why = f"{why}, then {type(error).__name__}: {in_words(error)}"
            elif handed_on:
                why = "some read what others give beside their activations"
    raise InputError(
        f"{skeleton.checkpoint.directory}: the blocks of a {type(skeleton.model).__name__} do not "
        "follow one another with one tensor between them, so it cannot be compressed block by "
        f"block ({why})"
    )


def _run_recording(
    skeleton: ModelSkeleton,
    tokens: Tensor,
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]],
    length: int | None,
) -> Exception | None:
    """Run the model on blocks that note what they are given; what it raised, if it did.

    They give what they were given, in a tuple of that length (None: as it is).
    """
    last = len(skeleton.blocks) - 1

    def recording(number: int) -> Any:
        def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((hidden, args, kwargs))
            if number == last:
                raise Stop
            return given(hidden, length)

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
