"""Definitions of kinds that a user gives: CustomResourceDefinitions, as their cluster has them.

What the checks read of a schema is held against its types here, once, so that they can rely on
them: a definition may have been written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.launch.check.catalogue import ManifestKind, kinds_of_spec


class _Rule(msgspec.Struct, frozen=True):
    """One rule in CEL."""

    rule: str
    message: str = ""


class _Schema(
    msgspec.Struct,
    frozen=True,
    rename={
        "list_type": "x-kubernetes-list-type",
        "list_map_keys": "x-kubernetes-list-map-keys",
        "validations": "x-kubernetes-validations",
    },
):
    """What `structural.py` reads of one field's schema."""

    type: Literal["string", "integer", "number", "boolean", "array", "object"] | None = None
    properties: dict[str, _Schema] = {}
    additionalProperties: _Schema | bool = False  # noqa: N815 - as files have it
    items: _Schema | None = None
    enum: list[Any] = []
    required: list[str] = []
    format: str = ""
    pattern: str = ""
    minimum: float = 0.0
    maximum: float = 0.0
    minLength: int = 0  # noqa: N815
    maxLength: int = 0  # noqa: N815
    minItems: int = 0  # noqa: N815
    maxItems: int = 0  # noqa: N815
    minProperties: int = 0  # noqa: N815
    maxProperties: int = 0  # noqa: N815
    list_type: str = ""
    list_map_keys: list[str] = []
    validations: list[_Rule] = []

    def __post_init__(self) -> None:
        if self.list_type == "map" and not self.list_map_keys:
            raise ValueError("a list of the type map without x-kubernetes-list-map-keys")


class _VersionSchema(msgspec.Struct, frozen=True):
    openAPIV3Schema: _Schema  # noqa: N815


class _Version(msgspec.Struct, frozen=True):
    name: str
    schema: _VersionSchema
    served: bool = True


class _Names(msgspec.Struct, frozen=True):
    kind: str


class _Spec(msgspec.Struct, frozen=True):
    group: str
    names: _Names
    versions: list[_Version]


class _Definition(msgspec.Struct, frozen=True):
    spec: _Spec


def kinds_defined_by(definition: Mapping[str, Any], source: str) -> list[ManifestKind]:
    """The kinds of one CustomResourceDefinition (`apiextensions.k8s.io/v1`).

    Raises:
        InputError: It has no group, no names or no schema, or a schema is none.
    """
    try:
        msgspec.convert(definition, type=_Definition)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{source}: no definition of a kind: {error}; give one as "
            "`kubectl get crd NAME -o yaml` prints it"
        ) from None
    return kinds_of_spec(definition["spec"])
