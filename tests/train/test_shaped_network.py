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


@pytest.mark.slow
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
        },
    )
    # A busy machine makes it slower, or reads at once what piled up: only that it is this link, and
    # not the machine's memory (a hundred times as fast), can be held against the clock here.
    assert seen["link"]["bytes_per_second"] < 2 * 12.5e6
    assert seen["gloo"][str(size)] > 0.9 * ring_all_reduce_seconds(2, size, 12.5e6)


def test_the_crossing_lies_where_the_lines_meet_and_one_bad_time_does_not_move_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import shaped_network

    sizes = [1000, 2000, 3000, 4000, 5000, 6000, 8000]
    doubling = {str(size): 2e-3 * size for size in sizes}
    ring = {str(size): 4.0 + 1e-3 * size for size in sizes}
    assert shaped_network.crossing_of(ring, doubling) == pytest.approx(4000)
    assert shaped_network.crossing_of(ring | {"4000": 30.0}, doubling) == pytest.approx(4000)
    assert shaped_network.crossing_of(doubling, ring) != pytest.approx(4000)


_LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 5999))
print("listening", flush=True)
connection, _ = server.accept()
total = 0
while piece := connection.recv(1 << 20):
    total += len(piece)
connection.sendall(str(total).encode())
"""
_SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5999))
started = time.perf_counter()
connection.sendall(bytes(1_250_000))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(64) == b"1250000"
print(time.perf_counter() - started)
"""


@pytest.mark.network
def test_bytes_to_a_distant_host_take_their_time_on_the_cable_and_the_delay(
    bench: ModuleType,
) -> None:
    with bench.DistantHosts(2, rate="100mbit", delay_seconds=0.05) as hosts:
        listener = hosts.start(1, [sys.executable, "-c", _LISTEN])
        assert listener.stdout.readline().strip() == "listening"
        sender = hosts.start(0, [sys.executable, "-c", _SEND, hosts.address(1)])
        seconds = float(sender.communicate(timeout=60)[0])
        listener.communicate(timeout=60)
    # 0.1 s of bytes, one way for the last of them and one way back for the answer; the window of
    # TCP opens in a few round trips.
    assert seconds >= 0.2
    assert not {hosts.name(0), hosts.name(1)} & namespaces_listed()
