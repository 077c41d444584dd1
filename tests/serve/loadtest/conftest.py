"""The stub server in a process of its own, and a load test against it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.serve.loadtest.stub_server import Stub

from ridgeline.records.load_test import LoadTest
from ridgeline.serve.loadtest.run import load_test
from ridgeline.serve.loadtest.settings import LoadSettings

ROOT = Path(__file__).parents[3]
Start = Callable[..., str]
Load = Callable[..., LoadTest]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a stub server with the given behaviour and returns its address."""
    processes = []

    def begin(**behaviour: Any) -> str:
        command = [sys.executable, "-m", "tests.serve.loadtest.stub_server"]
        process = subprocess.Popen(
            [*command, msgspec.json.encode(Stub(**behaviour)).decode()],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        processes.append(process)
        address = process.stdout.readline().decode().strip()
        assert address, "the stub did not start"
        return address

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def load() -> Load:
    """A short load test that accepts any lag: other tests may run beside it."""

    def run(url: str, **settings: Any) -> LoadTest:
        given = {"max_send_lag_seconds": 60.0, "max_cpu_share": 8.0, "warmup_seconds": 0.0}
        return load_test(LoadSettings(url=url, **given | settings), on_progress=lambda _: None)

    return run
