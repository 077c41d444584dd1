"""Reading what a script feeds its model: how many samples, how many tokens, how much padding."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import nn

_DEEPEST = 6
"""Collections and objects inside one another that are looked into."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_PLAIN = (Number, str)
"""What a list holds one of for each sample."""


def tensors_in(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Tensors in nested lists, tuples and mappings, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and hasattr(value, "values") and callable(value.values):
        for item in value.values():
            yield from tensors_in(item, depth - 1)


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a batch."""
    return sum(t.numel() * t.element_size() for t in tensors_in(value))


def tensors_within(value: Any) -> list[torch.Tensor]:
    """All tensors that can be reached from what a model is given or returns, each once.

    A cache of keys and values may be an object of any class: its attributes are looked into.
    """
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    todo = [(value, _DEEPEST)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, torch.Tensor):
            found[id(item)] = item
        elif depth and id(item) not in seen and not isinstance(item, (nn.Module, type)):
            seen.add(id(item))
            todo += [(part, depth - 1) for part in _parts_of(item)]
    return list(found.values())


def bytes_within(value: Any) -> int:
    """Bytes of all tensors that can be reached from what a model is given."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_within(value))


def _parts_of(item: Any) -> list[Any]:
    """Items of a collection, or attributes of an object."""
    if isinstance(item, (list, tuple)):
        return list(item)
    if isinstance(item, dict):
        return list(item.values())
    attributes = getattr(item, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []


def float_outputs(output: Any) -> list[bool]:
    """Which tensors of a bare tensor or a tuple of tensors are float32; empty for the rest."""
    outputs = output if type(output) is tuple and len(output) > 1 else (output,)
    if not all(isinstance(one, torch.Tensor) for one in outputs):
        return []
    return [one.dtype is torch.float32 for one in outputs]


class FedStep(NamedTuple):
    """What one step was fed."""

    samples: int = 0
    tokens: int = 0
    begins_epoch: bool = False
    """A loader was asked for an iterator in it."""


class FedSamples:
    """How many samples and tokens the main model is given, step by step."""

    def __init__(self) -> None:
        self.steps: list[FedStep] = []
        """Each step that has ended and was not taken."""
        self.begins_epoch = False
        """Whether a loader began in the step that goes on."""
        self._samples = self._tokens = 0

    def count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Add one call's inputs; returns the integer tensor that holds its tokens, if any."""
        samples, tokens, integers = _batch_size(args, kwargs)
        self._samples += samples
        self._tokens += tokens
        return integers

    def begin_step(self) -> None:
        """Begin to count the next step from zero."""
        self._samples = self._tokens = 0
        self.begins_epoch = False

    def end_step(self) -> None:
        """Keep what was counted of the step that ends."""
        self.steps.append(FedStep(self._samples, self._tokens, self.begins_epoch))

    def take(self) -> list[FedStep]:
        """The steps since the last time."""
        steps, self.steps = self.steps, []
        return steps


def _batch_size(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, int, torch.Tensor | None]:
    """Samples and tokens in a model's inputs, and the integer tensor that holds the tokens.

    The first tensor of rank ≥ 1 gives the samples (its first dimension). A two-dimensional
    integer tensor is taken as token ids, of shape (batch, sequence). Where there is no tensor, the
    first array, or the first list of numbers or texts, gives them; 0: nothing tells.
    """
    for tensor in tensors_in((args, kwargs)):
        if tensor.dim() == 0:
            continue
        if tensor.dim() == 2 and tensor.dtype in _INTEGERS:
            return int(tensor.shape[0]), int(tensor.numel()), tensor
        return int(tensor.shape[0]), 0, None
    return next(_lengths((args, kwargs)), 0), 0, None


def _lengths(value: Any, depth: int = 3) -> Iterator[int]:
    """Samples in what is no tensor, in order: rows of an array, items of a list, or one text."""
    shape = getattr(value, "shape", None)
    if isinstance(value, str):
        yield 1
    elif isinstance(shape, tuple) and shape:
        yield int(shape[0])
    elif depth and isinstance(value, (list, tuple, dict)):
        items = list(value.values()) if isinstance(value, dict) else value
        if isinstance(value, list) and items and all(isinstance(one, _PLAIN) for one in items):
            yield len(items)
        else:
            for item in items:
                yield from _lengths(item, depth - 1)


def padding_share(tokens: torch.Tensor) -> float:
    """Share of `tokens` (batch, sequence) that is one value repeated to the end of its row.

    A single trailing token is not padding; the value must be the same in all padded rows.
    """
    if tokens.dim() != 2 or tokens.shape[1] < 4:
        return 0.0
    last = tokens[:, -1:]
    value = last.mode(dim=0).values
    run = (tokens.flip(1) == value).long().cumprod(dim=1).sum(dim=1)
    padded = torch.where(run > 1, run, torch.zeros_like(run))
    return float(padded.sum()) / tokens.numel()
