"""What a vision model answers that is no classifier: maps, boxes, depths, keypoints, by name.

Every tensor that a model returns, however it is nested, is an output with a name of its path:
`pred_boxes`, `aux.0.logits`, `1`. Two models are compared output by output, since one range or one
figure over all of them would hide a small one: boxes reach 640 where scores end at 1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ridgeline.compress.images.answers import share
from ridgeline.compress.vision.batches import Batch, inputs_of, moved, rows_of
from ridgeline.errors import InputError, in_words
from ridgeline.measure.network.scripted import run_script, split_script
from ridgeline.records.image_compression import OutputLikeness, Share
from ridgeline.runtimes.capture.constants import ConstantReads
from ridgeline.runtimes.capture.structure import Structure, UnknownStructure, flatten, unflatten

if TYPE_CHECKING:
    from ridgeline.compress.images.material import Images

OutputMetric = Callable[[Callable[..., Any]], float]
"""The user's measure of a model, the higher the better."""


class FlatOutputs(nn.Module):
    """A model that gives its logits, or its one tensor, or a tuple of all of its tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.arguments: tuple[str, ...] = ()
        """The names of the arguments in the order of the inputs; empty: by position."""
        self.in_one_dict = False
        """Whether the model takes them as one dict by these names."""
        self.structure: Structure | None = None
        """What lay around the tensors; None for logits."""
        self.reads = ConstantReads()

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The tensors of what the model returns, in order."""
        with self.reads.kept(self.model):
            named = dict(zip(self.arguments, inputs, strict=True)) if self.arguments else {}
            if self.in_one_dict:
                output = self.model(named)
            elif named:
                output = self.model(**named)
            else:
                output = self.model(*inputs)
        logits = getattr(output, "logits", output)
        if isinstance(logits, Tensor) and logits.ndim == 2:
            return logits
        try:
            tensors, self.structure = flatten(output)
        except UnknownStructure as error:
            raise InputError(
                f"forward returns a {error}, which cannot be compared; return tensors, or lists,"
                " tuples, dicts or dataclasses of them"
            ) from None
        return tensors[0] if len(tensors) == 1 else tuple(tensors)


def output_names(structure: Structure | None, count: int) -> tuple[str, ...]:
    """The path of each tensor in what a model returns.

    >>> output_names({"dict": [["boxes", {"tensor": 0}], ["aux", {"list": [{"tensor": 1}]}]]}, 2)
    ('boxes', 'aux.0')
    >>> output_names({"dict": [[["disp", 0], {"tensor": 0}]]}, 1)
    ('disp.0',)
    """
    found: dict[int, str] = {}
    if structure is not None:
        _name(structure, "", found)
    return tuple(found.get(place) or f"output{place or ''}" for place in range(count))


def _name(structure: Structure, path: str, found: dict[int, str]) -> None:
    ((kind, content), *rest) = structure.items()
    if kind == "tensor":
        found[content] = path
    elif kind in ("list", "tuple"):
        for place, one in enumerate(content):
            _name(one, f"{path}.{place}".lstrip("."), found)
    elif kind in ("dict", "object"):
        for key, one in content if kind == "dict" else rest[0][1]:
            step = ".".join(map(str, key)) if isinstance(key, list) else key
            _name(one, f"{path}.{step}".lstrip("."), found)


def input_names(module: nn.Module, batch: Batch) -> tuple[str, ...]:
    """What the inputs of a file shall be called: as the arguments of the user's forward are."""
    given = len(inputs_of(batch))
    if not isinstance(module, FlatOutputs):
        return tuple(f"input{place or ''}" for place in range(given))
    names = module.arguments or tuple(inspect.signature(module.model.forward).parameters)
    known = [one for one in names if one not in ("args", "kwargs")][:given]
    return (*known, *(f"input{place}" for place in range(len(known), given)))


def largest_batch(module: nn.Module, images: Images) -> int | None:
    """The largest batch of a model: 1, or None where it takes more.

    Raises:
        InputError: It does not take a single image either.
    """
    try:
        answered(module, images.head(2))
    except InputError:
        answered(module, images.head(1))
        return 1
    return None


def tensors_of(output: Any) -> tuple[Tensor, ...]:
    """The tensors of what `FlatOutputs`, or a program made of it, returns."""
    return (output,) if isinstance(output, Tensor) else tuple(output)


def is_classifier(output: Any) -> bool:
    """Whether an answer is logits [images, classes], two classes or more."""
    return isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1


@torch.no_grad()
def answered(model: nn.Module, batch: Batch) -> Any:
    """What a model answers to a batch.

    Raises:
        InputError: It does not take such inputs, or its answers have no row for each sample.
    """
    place = next((one for one in model.parameters() if one.is_floating_point()), torch.empty(0))
    try:
        output = model(*moved(batch, place))
    except InputError:
        raise
    except Exception as error:  # whatever a user's forward raises
        shapes = ", ".join(str(list(one.shape)) for one in inputs_of(batch))
        raise InputError(f"the model cannot take images {shapes}: {in_words(error)}") from error
    for one in tensors_of(output):
        if not one.ndim or len(one) != rows_of(batch):
            raise InputError(_no_row_each(one, rows_of(batch)))
    return output


def _no_row_each(output: Tensor, images: int) -> str:
    """Why an output cannot be compared image by image, and what helps."""
    said = f"the model gives {list(output.shape)} for {images} image{'s' if images > 1 else ''}"
    if output.ndim > 1 and output.shape[1] == images:
        cure = "where its second dimension counts them, return it with .transpose(0, 1)"
    else:
        cure = "leave suppression of boxes and the like out of the model, and give it to --metric"
    return f"{said}: an output needs a row for each image; {cure}"


@dataclass(slots=True)
class _Sums:
    """What is summed up of one output over batches."""

    shape: tuple[int, ...]
    signal: float = 0.0
    noise: float = 0.0
    equal: int = 0
    choices: int = 0

    def add(self, exact: Tensor, other: Tensor) -> None:
        if exact.is_floating_point():
            # infinite scores mask queries and anchors on purpose; where both are, nothing differs
            same = exact.eq(other) & ~exact.isfinite()
            one = exact.double().masked_fill(same, 0.0)
            two = other.double().masked_fill(same, 0.0)
            self.signal += float(one.square().sum())
            self.noise += float((one - two).square().sum())
        chosen = _chosen(exact), _chosen(other)
        if chosen[0] is not None and chosen[1] is not None:
            self.equal += int((chosen[0] == chosen[1]).sum())
            self.choices += chosen[0].numel()


def _chosen(output: Tensor) -> Tensor | None:
    """The class of each pixel of a map [n, classes, height, width]; whole numbers as they are."""
    if not output.is_floating_point():
        return output
    return output.argmax(1) if output.ndim == 4 and output.shape[1] > 1 else None


@dataclass(slots=True)
class OutputComparison:
    """Two models' outputs, batch after batch."""

    sums: list[_Sums] = field(default_factory=list)

    def add(self, given: Any, other: Any) -> None:
        """Take the answers to one batch.

        Raises:
            InputError: The outputs have other shapes.
        """
        exact, found = tensors_of(given), tensors_of(other)
        shapes = [[list(one.shape) for one in side] for side in (exact, found)]
        if shapes[0] != shapes[1]:
            raise InputError(f"the models answer {shapes[1]} and {shapes[0]}: they do not compare")
        self.sums = self.sums or [_Sums(tuple(one.shape[1:])) for one in exact]
        for own, one, two in zip(self.sums, exact, found, strict=True):
            own.add(one.cpu(), two.cpu())

    def found(self, names: Sequence[str]) -> tuple[OutputLikeness, ...]:
        """The record of each output."""
        return tuple(
            OutputLikeness(
                name=name,
                shape=one.shape,
                sqnr_db=_decibels(one.signal, one.noise),
                relative_error=_ratio(one.noise, one.signal),
                agreement=share(one.equal, one.choices) if one.choices else None,
            )
            for name, one in zip(names, self.sums, strict=True)
        )

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of all outputs together; None where nothing differs."""
        sums = self.sums
        return _decibels(sum(one.signal for one in sums), sum(one.noise for one in sums))


def share_of_choices(outputs: Sequence[OutputLikeness]) -> Share | None:
    """Pixels and whole numbers that are equal, over all outputs; None where nothing is chosen."""
    chosen = [one.agreement for one in outputs if one.agreement is not None]
    count, of = sum(one.count for one in chosen), sum(one.of for one in chosen)
    return share(count, of) if of else None


def _decibels(signal: float, noise: float) -> float | None:
    if noise == 0 or signal == 0 or not math.isfinite(noise):
        return None
    return 10 * math.log10(signal / noise)


def _ratio(noise: float, signal: float) -> float | None:
    """Root of Σ (x − y)² over Σ x²; None where it is not finite."""
    if noise == 0:
        return 0.0
    found = math.sqrt(noise / signal) if signal > 0 else math.inf
    return found if math.isfinite(found) else None


def read_metric(text: str) -> OutputMetric:
    """The user's function behind `--metric FILE.py:NAME`.

    Raises:
        InputError: There is no such script or function.
    """
    found = split_script(text)
    if found is None or not found[1]:
        raise InputError(f"--metric {text}: give metric.py:NAME, a function of a model")
    script = run_script(found[0], "--metric")
    function = getattr(script, found[1], None)
    if not callable(function):
        raise InputError(f"--metric {text}: {Path(found[0]).name} defines no function {found[1]!r}")

    def metric(model: Callable[..., Any]) -> float:
        try:
            with torch.no_grad():
                value = float(function(model))
        except Exception as error:  # whatever the user's code raises
            raise InputError(f"--metric {text}: fails with {in_words(error)}") from error
        if not math.isfinite(value):
            raise InputError(f"--metric {text}: gives {value}; return a finite number")
        return value

    return metric


def as_called(module: nn.Module, structure: Structure | None) -> Callable[..., Any]:
    """A model that answers in the structure of the one as given."""

    def call(*inputs: Tensor) -> Any:
        output = module(*inputs)
        return output if structure is None else unflatten(structure, list(tensors_of(output)))

    return call
