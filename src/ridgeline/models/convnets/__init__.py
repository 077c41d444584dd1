"""Convolutional networks by name, each built from its published definition.

Every file here lists `NETWORKS`: name → `Network`, and is found by its name. A new family is a new
file.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.models.convnet import Builder, ConvNet
from ridgeline.models.names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The recipe of one network."""

    build: Callable[[Builder], None]
    """Adds the operators from image to classes."""
    image_size: int = 224
    """What its paper uses."""
    smallest: int = 32
    """Below this the last stages see a single pixel."""


def load_convnet(name: str, image_size: int | None = None) -> ConvNet:
    """The network called `name`, for square RGB images of `image_size` (default: its paper's).

    >>> load_convnet("resnet50").parameters
    25557032
    """
    canonical = convnet_names().find(name)
    network = networks()[canonical]
    size = network.image_size if image_size is None else image_size
    if size < network.smallest:
        raise InputError(f"{canonical}: image size {size}; it must be {network.smallest} or more")
    builder = Builder(channels=3, size=size)
    network.build(builder)
    return builder.done(canonical, size)


@functools.cache
def networks() -> dict[str, Network]:
    """Canonical name → recipe, from every file of this folder."""
    found: dict[str, Network] = {}
    for module in sorted(one.name for one in pkgutil.iter_modules(__path__)):
        entries = importlib.import_module(f"{__name__}.{module}").NETWORKS
        twice = found.keys() & entries.keys()
        assert not twice, f"{sorted(twice)} are built by two files"
        found.update(entries)
    return found


@functools.cache
def convnet_names() -> Names:
    """All spellings of their names."""
    names = Names("network")
    for name in networks():
        names.claim(name, name, place=__name__)
    return names
