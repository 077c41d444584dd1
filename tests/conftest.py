"""Which tests need the machine for themselves: those that measure time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

ALONE = (
    "faults",
    "tune/test_duel.py",
    "tune/test_tuner.py",
    "measure/test_probe.py",
    "cli/test_doctor.py",
)
"""Under `tests/`: scripts are timed there, and a neighbour's load would be measured too."""
_ROOT = Path(__file__).parent
# How long one example takes says something about the machine's other work, not about the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, so that `make test` runs them after all others, one at a time."""
    for item in items:
        if any(item.path.is_relative_to(_ROOT / place) for place in ALONE):
            item.add_marker("alone")
