"""The examples in the package's docstrings say what is so.

They are gathered here and not by `--doctest-modules`, for which every process of the suite would
import the whole package.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_in_docstrings_hold(path: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    failed, tried = doctest.testmod(importlib.import_module(name), exclude_empty=True)
    assert tried
    assert not failed
