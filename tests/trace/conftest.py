"""The shared real traces and their reference figures, where they are on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).parents[3] / "shared"


@pytest.fixture(scope="session")
def real_traces() -> Path:
    folder = SHARED / "data" / "traces"
    if not folder.is_dir():
        pytest.skip("the real traces are not here (shared/data/traces)")
    return folder


@pytest.fixture(scope="session")
def hta_reference() -> dict[str, Any]:
    file = SHARED / "notes" / "hta_reference.json"
    if not file.exists():
        pytest.skip("the reference figures are not here (shared/notes/hta_reference.json)")
    return {key: value for key, value in json.loads(file.read_text()).items() if key != "_about"}
