"""A folder of rules: every file is one, and every cause has one owner."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any


def rule_files(package: str, folders: Iterable[str]) -> dict[str, Any]:
    """The rule modules of a package by file name; a cause with two owners is a bug."""
    found: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for info in pkgutil.iter_modules(folders):
        module: Any = importlib.import_module(f"{package}.{info.name}")
        for cause in module.CAUSES:
            if cause in owners:
                raise AssertionError(f"{cause} belongs to both {owners[cause]} and {info.name}")
            owners[cause] = info.name
        found[info.name] = module
    return found
