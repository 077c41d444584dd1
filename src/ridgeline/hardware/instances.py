"""Machines by the names that clouds and makers give them: p5.48xlarge, a3-megagpu-8g, DGX H100.

A machine is so many of one device (`instances.toml`). Whoever asks for a device by such a name
means one of these, and a cluster of machines is all devices in them; either is said.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.facts import Fact, Source
from ridgeline.records.input_file import read_toml

_FILE = Path(__file__).with_name("instances.toml")
_MAKERS = re.compile(r"^(nvidia|aws|google|gcp|azure|microsoft|ml|standard)[-.]")


class Instance(Fact, frozen=True, kw_only=True):
    """Machines of one content."""

    names: list[str]
    device: str
    """The name of its device in the catalogue."""
    count: int
    """Devices of one machine."""
    source: str

    def said(self, name: str) -> str:
        """What is taken where a device is called by the machine's name."""
        if self.count == 1:
            return f"{name} has one {self.device}"
        return f"{name} has {self.count} x {self.device}: one of them is meant"


class InstanceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table of machines."""

    sources: dict[str, Source]
    instance: list[Instance]


def instance(name: str) -> Instance | None:
    """The machine that a name means; None: none that is known.

    >>> found = instance("ml.p4d.24xlarge")
    >>> found.count, found.device
    (8, 'A100-SXM-40GB')
    """
    return _instances().get(_fold(name))


def instances() -> list[Instance]:
    """Every machine that is known, in the order of the file."""
    return list(_file().instance)


@functools.cache
def _file() -> InstanceFile:
    return read_toml(_FILE, InstanceFile)


@functools.cache
def _instances() -> dict[str, Instance]:
    file = _file()
    found: dict[str, Instance] = {}
    for one in file.instance:
        if one.source not in file.sources:
            raise InputError(f"{_FILE}: source {one.source!r} is not in [sources]")
        for name in one.names:
            if _fold(name) in found:
                raise InputError(f"{_FILE}: {name!r} stands there twice")
            found[_fold(name)] = one
    return found


def _fold(name: str) -> str:
    """One spelling for all: clouds and services put their own name in front, or do not."""
    folded = re.sub(r"[\s_-]+", "-", name.casefold().strip())
    while match := _MAKERS.match(folded):
        folded = folded[match.end() :]
    return folded
