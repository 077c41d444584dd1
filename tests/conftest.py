"""What all tests share: threads, hypothesis, scripts that start warm."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of two teams that wait for each other burn the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# How long one example takes says something about the machine's other work, not about the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Scripts start as forks of a process that has imported torch."""
    from tests.warm_scripts import start_warm

    from ridgeline.measure import conductor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor, "start", start_warm)
        yield
