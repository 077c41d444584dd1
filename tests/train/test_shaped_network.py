"""Ranks on hosts of their own, over links with a real bandwidth (`bench/shaped_network.py`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ridgeline.cost.collective_volume import ring_all_reduce_seconds

BENCH = Path(__file__).resolve().parents[2] / "bench"
ROOT = BENCH.parent


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCH))
    try:
        import namespaces
        import shaped_network

        reason = namespaces.why_not()
        if reason:
            pytest.skip(f"namespaces cannot be made here: {reason}")
        yield shaped_network
    finally:
        sys.path.remove(str(BENCH))


def namespaces_listed() -> set[str]:
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[0] for line in listed.splitlines() if line.strip()}


def _interrupted_block(hosts: Any) -> None:
    hosts.start(0, ["sleep", "1000"])
    assert {hosts.name(0), hosts.name(1)} <= namespaces_listed()
    raise KeyboardInterrupt


@pytest.mark.network
def test_nothing_is_left_behind_when_the_block_fails(bench: ModuleType) -> None:
    hosts = bench.Hosts(2, rate="100mbit")
    made = {hosts.name(0), hosts.name(1)}
    with pytest.raises(KeyboardInterrupt), hosts:
        _interrupted_block(hosts)
    assert not made & namespaces_listed()
    assert all(process.poll() is not None for process in hosts._processes)


@pytest.mark.network
@pytest.mark.multiprocess
def test_an_all_reduce_takes_the_time_of_its_bytes_on_the_link(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    size = 2**20
    seen = bench.measure(
        2,
        "100mbit",
        "collectives",
        {
            "stream_bytes": 2_000_000,
            "seconds_each": 0.2,
            "gloo": [size],
            "ring": [],
            "doubling": [],
        },
    )
    # A busy machine makes it slower, or reads at once what piled up: only that it is this link, and
    # not the machine's memory (a hundred times as fast), can be held against the clock here.
    assert seen["link"]["bytes_per_second"] < 2 * 12.5e6
    assert seen["gloo"][str(size)] > 0.9 * ring_all_reduce_seconds(2, size, 12.5e6)


def test_the_crossing_lies_where_the_ring_gets_ahead_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import shaped_network

    doubling = {"1000": 1.0, "2000": 2.0, "4000": 4.0, "8000": 8.0}
    ring = {"1000": 4.0, "2000": 4.0, "4000": 4.0, "8000": 4.0}
    assert shaped_network.crossing(ring, doubling) == pytest.approx(4000)
    assert shaped_network.crossing(doubling | {"8000": 9.0}, doubling) != pytest.approx(4000)
