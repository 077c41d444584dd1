"""The kinds that the checker knows: core kinds of Kubernetes 1.36 and 26 custom resources.

Schemas stand in `schemas/`, unchanged but for descriptions, with their sources in
`schemas/SOURCES.md` (all Apache-2.0). Definitions that a user gives (`definitions.py`) stand before
them: those of the cluster at hand.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import msgspec

_CORE_FILE = "kubernetes_core_openapi_v2_subset.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestKind:
    """One kind of object and how its objects are described."""

    api_version: str
    name: str
    custom: bool
    """A custom resource is checked by its schema and CEL, not by server code."""
    schema: Mapping[str, Any]
    served: bool = True
    """Whether the API server takes and gives objects of this version."""

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]


Given = Mapping[tuple[str, str], ManifestKind]
"""Kinds by (apiVersion, kind) that a user's own definitions describe."""
NONE_GIVEN: Given = MappingProxyType({})


def find_kind(api_version: str, kind: str, given: Given = NONE_GIVEN) -> ManifestKind | None:
    """The kind, or None when no schema is known."""
    wanted = (api_version, kind)
    return given.get(wanted) or core_kinds().get(wanted) or _custom_kind(api_version, kind)


def served_versions(api_version: str, kind: str, given: Given) -> list[str] | None:
    """The versions of a kind that a given definition serves, if it does not serve this one.

    None where it serves this one, or where no given definition is of the kind.
    """
    group = api_version.rpartition("/")[0]
    defined = [one for one in given.values() if (one.group, one.name) == (group, kind)]
    served = [one.api_version for one in defined if one.served]
    return None if not defined or api_version in served else served


def other_versions(api_version: str, kind: str) -> list[str]:
    """Versions of this kind that are known, where this one is not: `ray.io/v1`."""
    group = api_version.rpartition("/")[0]
    core = [one.api_version for one in core_kinds().values() if one.name == kind]
    found = [one for one in core if one.rpartition("/")[0] == group]
    found += [one.api_version for one in _custom_kinds(group) if one.name == kind]
    return sorted(set(found) - {api_version})


@cache
def core_definitions() -> dict[str, Any]:
    """OpenAPI definitions of the core kinds, by the `$ref` that names them."""
    document = _read(_CORE_FILE)
    return {f"#/definitions/{name}": body for name, body in document["definitions"].items()}


@cache
def core_kinds() -> dict[tuple[str, str], ManifestKind]:
    """Core kinds by (apiVersion, kind)."""
    kinds = {}
    for definition in core_definitions().values():
        for entry in definition.get("x-kubernetes-group-version-kind", ()):
            group, version, kind = entry["group"], entry["version"], entry["kind"]
            api_version = f"{group}/{version}" if group else version
            kinds[api_version, kind] = ManifestKind(
                api_version=api_version,
                name=kind,
                custom=False,
                schema=definition,
            )
    return kinds


@cache
def _custom_files() -> tuple[str, ...]:
    folder = resources.files(__package__) / "schemas"
    return tuple(sorted(f.name for f in folder.iterdir() if f.name.startswith("crd_")))


def _custom_kind(api_version: str, kind: str) -> ManifestKind | None:
    found = _custom_kinds(api_version.rpartition("/")[0])
    wanted = (api_version, kind)
    return next((one for one in found if (one.api_version, one.name) == wanted), None)


def _custom_kinds(group: str) -> Iterator[ManifestKind]:
    """Kinds of a group; a file is called crd_<plural>.<group>.json.gz, and only its are read."""
    for name in _custom_files():
        if group and name.removeprefix("crd_").split(".", 1)[1] == f"{group}.json.gz":
            yield from _kinds_of(name)


@cache
def _kinds_of(file_name: str) -> tuple[ManifestKind, ...]:
    return tuple(kinds_of_spec(_read(file_name)["spec"]))


def kinds_of_spec(spec: Mapping[str, Any]) -> list[ManifestKind]:
    """The kinds of the `spec` of a CustomResourceDefinition, one for each version."""
    return [
        ManifestKind(
            api_version=f"{spec['group']}/{version['name']}",
            name=spec["names"]["kind"],
            custom=True,
            schema=version["schema"]["openAPIV3Schema"],
            served=version.get("served", True),
        )
        for version in spec["versions"]
    ]


def _read(name: str) -> Any:
    path = resources.files(__package__) / "schemas" / name
    return msgspec.json.decode(gzip.decompress(path.read_bytes()))
