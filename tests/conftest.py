"""What all tests share: threads, hypothesis, scripts that start warm."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of two teams that wait for each other burn the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# A name that is no folder is not looked up: that takes half a minute where there is no network.
os.environ["HF_HUB_OFFLINE"] = "1"
# How long one example takes says something about the machine's other work, not about the code.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: the long ones first, then those of many tests.

    xdist alone would go by the number of tests; the Makefile turns that off.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    from tests.file_seconds import known

    seconds, tests = known(), Counter(map(_file, items))
    items.sort(key=lambda one: (-seconds.get(_file(one), 0.0), -tests[_file(one)], _file(one)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Scripts start as forks of a process that has imported torch."""
    from tests.warm_scripts import start_warm

    from ridgeline.measure.live import conductor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor, "start", start_warm)
        yield
