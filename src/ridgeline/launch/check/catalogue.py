"""The kinds that the checker knows: core kinds of Kubernetes 1.36 and 26 custom resources.

Schemas stand in `schemas/`, unchanged but for descriptions, with their sources in
`schemas/SOURCES.md` (all Apache-2.0).
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
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

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]


def find_kind(api_version: str, kind: str) -> ManifestKind | None:
    """The kind, or None when no schema is known."""
    return core_kinds().get((api_version, kind)) or _custom_kind(api_version, kind)


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
    group = api_version.rpartition("/")[0]
    if not group:
        return None
    for name in _custom_files():
        # A file is called crd_<plural>.<group>.json.gz: only those of the group are read.
        if name.removeprefix("crd_").split(".", 1)[1] == f"{group}.json.gz":
            for found in _kinds_of(name):
                if (found.api_version, found.name) == (api_version, kind):
                    return found
    return None


@cache
def _kinds_of(file_name: str) -> tuple[ManifestKind, ...]:
    spec = _read(file_name)["spec"]
    return tuple(
        ManifestKind(
            api_version=f"{spec['group']}/{version['name']}",
            name=spec["names"]["kind"],
            custom=True,
            schema=version["schema"]["openAPIV3Schema"],
        )
        for version in spec["versions"]
    )


def _read(name: str) -> Any:
    path = resources.files(__package__) / "schemas" / name
    return msgspec.json.decode(gzip.decompress(path.read_bytes()))
