"""Well-known models by name: config.json keys as TOML, read by the same readers as a user's file.

Each `[[family]]` of a file here names its source, the keys that its rows share, and the columns of
the rows. `parameters` is the published total of a row; tests hold our count to it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.models.config import spec_from_config
from ridgeline.models.names import Names
from ridgeline.models.spec import ModelSpec
from ridgeline.records.input_file import read_toml

FOLDER = Path(__file__).parent


class FamilyRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of one `[[family]]`: rows of sizes under one source."""

    source: str
    """Paper and table, or the repository whose config.json has these values."""
    shared: dict[str, Any]
    columns: list[str]
    """The first is `name`; `parameters` is the published total; the others are config keys."""
    rows: list[list[Any]]
    aliases: dict[str, list[str]] = {}


class PresetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of presets."""

    family: list[FamilyRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One well-known model as its publisher configures it."""

    name: str
    config: dict[str, Any]
    """Keys of its config.json."""
    source: str
    published_parameters: int | None
    """The publisher's exact total; None where only a rounded one is published."""
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPresets:
    """Every preset of a folder, and all the names that they go by."""

    presets: dict[str, Preset]
    names: Names


def preset(name: str) -> ModelSpec:
    """The well-known model called `name`; an unknown one is refused with the nearest names.

    >>> preset("llama3 8b").hidden
    4096
    """
    return preset_spec(known_presets().names.find(name))


@functools.cache
def preset_spec(canonical: str) -> ModelSpec:
    """The model under exactly this name."""
    known = known_presets().presets[canonical]
    return spec_from_config(known.config, place=known.place, name=canonical)


def preset_names() -> list[str]:
    """Canonical names, in the order of the files."""
    return list(known_presets().presets)


@functools.cache
def known_presets(folder: Path = FOLDER) -> KnownPresets:
    """Read and cross-check all files of presets."""
    presets: dict[str, Preset] = {}
    names = Names("model")
    for path in sorted(folder.glob("*.toml")):
        for family in read_toml(path, PresetFile).family:
            for row in family.rows:
                one = _row(path, family, row)
                presets[one.name] = one
                names.claim(one.name, one.name, place=str(path))
            for owner, aliases in family.aliases.items():
                if owner not in presets:
                    raise InputError(f"{path}: aliases name {owner!r}, which no row is called")
                for alias in aliases:
                    names.claim(alias, owner, place=str(path))
    return KnownPresets(presets=presets, names=names)


def _row(path: Path, family: FamilyRows, row: list[Any]) -> Preset:
    if len(row) != len(family.columns) or family.columns[0] != "name":
        raise InputError(
            f"{path}: row {row[:1]} has {len(row)} values; its columns are {family.columns}"
        )
    values = dict(zip(family.columns, row, strict=True))
    name = values.pop("name")
    published = values.pop("parameters", None)
    return Preset(
        name=name,
        config={**family.shared, **values},
        source=family.source,
        published_parameters=published,
        place=f"{path}: {name}",
    )
