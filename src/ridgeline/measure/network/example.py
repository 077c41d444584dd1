"""What a module is called with while it is counted: an image, or a sample of each argument.

A rig of cameras comes with its poses, stereo with two images, a radar network with points: no one
image says what such a forward does, and a file of its inputs does.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, NotCounted
from ridgeline.image_files.tensors import open_inputs

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInputs:
    """One sample of everything that forward takes, with a batch of one."""

    positional: tuple[Tensor, ...] = ()
    named: Mapping[str, Tensor] = field(default_factory=dict)
    in_one_dict: bool = False
    """Whether forward takes `named` as one dict, as its only argument."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the sample."""
        return [*self.positional, *self.named.values()]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the largest."""
        shape = max(self.tensors, key=torch.numel).shape
        return (int(shape[-2]), int(shape[-1])) if len(shape) > 2 else (1, int(shape[-1]))

    def given_to(self, module: nn.Module) -> None:
        """Call the module with it."""
        if self.in_one_dict:
            module(dict(self.named))
        else:
            module(*self.positional, **self.named)

    def said(self) -> str:
        """What it is, for messages."""
        shapes = (" × ".join(map(str, one.shape)) for one in self.tensors)
        return f"inputs of {', '.join(shapes)}"

    def beside(self, module: nn.Module) -> ExampleInputs:
        """The same where the module's parameters are, in their dtype."""
        first = next((one for one in module.parameters() if one.is_floating_point()), None)

        def moved(one: Tensor) -> Tensor:
            if first is None:
                return one.to("meta")
            wide = one.is_floating_point()
            return one.to(device=first.device, dtype=first.dtype if wide else one.dtype)

        return replace(
            self,
            positional=tuple(map(moved, self.positional)),
            named={name: moved(one) for name, one in self.named.items()},
        )


def image_example(
    image_size: tuple[int, int], channels: int = 3, frames: int | None = None
) -> ExampleInputs:
    """An image of zeros, or a clip of some frames."""
    clip = () if frames is None else (frames,)
    return ExampleInputs(positional=(torch.zeros(1, *clip, channels, *image_size),))


def read_example(path: Path) -> ExampleInputs:
    """The first sample of a file, as `compress` and `export` read it.

    Raises:
        InputError: It cannot be read.
    """
    if not path.is_file():
        raise InputError(f"--inputs {path}: no such file; check the path")
    stored = open_inputs(f"--inputs {path}", path, judged=False)
    sample = stored.read(0)
    columns = sample if isinstance(sample, tuple) else (sample,)
    tensors = tuple(torch.from_numpy(one)[None] for one in columns)
    if stored.arguments:
        return ExampleInputs(named=dict(zip(stored.arguments, tensors, strict=True)))
    return ExampleInputs(positional=tensors)


def takes_one_dict(module: nn.Module, names: Collection[str]) -> bool:
    """Whether forward can only mean arrays of these names as one dict: `forward(self, batch)`.

    >>> class Rig(nn.Module):
    ...     def forward(self, batch): return batch["image"]
    >>> takes_one_dict(Rig(), ["image", "poses"]), takes_one_dict(Rig(), ["batch"])
    (True, False)
    """
    parameters = inspect.signature(module.forward).parameters
    alone = len(needed_arguments(module)) == 1
    gathers = any(one.kind in _REST for one in parameters.values())
    return len(names) > 1 and alone and not gathers and not parameters.keys() & set(names)


def needed_arguments(module: nn.Module) -> list[str]:
    """The arguments that forward has no default for."""
    return [
        one.name
        for one in inspect.signature(module.forward).parameters.values()
        if one.default is inspect.Parameter.empty and one.kind not in _REST
    ]


def fitted(example: ExampleInputs, module: nn.Module, name: str) -> ExampleInputs:
    """The example by the names that forward has.

    Raises:
        NotCounted: Forward takes more than it holds, or others.
    """
    parameters = inspect.signature(module.forward).parameters
    given = dict(example.named)
    if "labels" in given and "labels" not in needed_arguments(module):  # the samples' classes
        del given["labels"]
        example = replace(example, named=dict(given))
    if len(given) == 1 and not given.keys() & parameters.keys():
        example, given = ExampleInputs(positional=tuple(given.values())), {}
    if takes_one_dict(module, given):
        return replace(example, in_one_dict=True)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return example
    unknown = sorted(given.keys() - parameters.keys())
    lacking = [
        one for one in needed_arguments(module)[len(example.positional) :] if one not in given
    ]
    if unknown or lacking:
        wrong = f"has no argument {', '.join(unknown)}" if unknown else ""
        wrong = wrong or f"also needs {', '.join(lacking)}"
        raise NotCounted(
            f"{name}: forward({', '.join(parameters)}) {wrong}; give a sample of each with"
            " --inputs FILE, an .npz with an array for each argument, by name"
        )
    return example
