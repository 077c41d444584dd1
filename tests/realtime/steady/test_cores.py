"""Which cores workers get: the quiet ones first, of their own where all fit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ridgeline.realtime.steady import affinity
from ridgeline.realtime.steady.affinity import CoreAffinity, assign_cores, cores_in_order


def machine(root: Path, siblings: list[str], isolated: str = "") -> Path:
    """The kernel's files of a machine; `siblings`: the hardware threads beside each core."""
    system = root / "sys/devices/system/cpu"
    for core, text in enumerate(siblings):
        topology = system / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    (system / "isolated").write_text(f"{isolated}\n")
    return root


def test_one_hardware_thread_of_each_core_comes_before_the_second(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"])
    order = cores_in_order(set(range(8)), root)
    assert order[:4] == [3, 2, 1, 0]
    assert set(order[4:]) == {4, 5, 6, 7}


def test_isolated_cores_come_first_though_the_process_is_not_on_them(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0", "1", "2", "3"], isolated="2-3")
    assert cores_in_order({0, 1}, root) == [3, 2, 1, 0]


def test_a_machine_that_says_nothing_of_its_cores_leaves_the_first_for_last(
    tmp_path: Path,
) -> None:
    assert cores_in_order({0, 1, 2}, tmp_path) == [2, 1, 0]


def test_workers_that_do_not_all_fit_share_every_core() -> None:
    assert assign_cores(["a", "b", "c"], [1, 0], 1) == {name: {0, 1} for name in "abc"}
    assert assign_cores(["a", "b"], [3, 2, 1, 0], 2) == {"a": {2, 3}, "b": {0, 1}}


pinnable = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="a process cannot be pinned to one of several cores here",
)


@pinnable
def test_a_worker_is_pinned_alone_and_its_thread_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(affinity, "threads_per_worker", lambda: 1)
    allowed = os.sched_getaffinity(0)
    cores = CoreAffinity()
    cores.plan(["detect"])
    seen = []

    def worker() -> None:
        thread = threading.get_native_id()
        cores.enter("detect", thread)
        seen.append(os.sched_getaffinity(0))
        cores.undo({thread})
        seen.append(os.sched_getaffinity(0))

    started = threading.Thread(target=worker)
    started.start()
    started.join()
    assert [len(found) for found in seen] == [1, len(allowed)]
    assert os.sched_getaffinity(0) == allowed
    assert cores.measure.granted
    assert f"detect on core {max(seen[0])}" in cores.measure.detail


@pinnable
def test_a_core_that_the_system_withholds_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(affinity, "threads_per_worker", lambda: 1)
    cores = CoreAffinity(machine(tmp_path, ["0"], isolated="1000"))
    cores.plan(["detect"])
    cores.enter("detect", threading.get_native_id())
    assert not cores.measure.granted
    assert "detect: core 1000: Invalid argument" in cores.measure.detail
    assert len(os.sched_getaffinity(0)) > 1


@pinnable
def test_more_workers_than_cores_are_told_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "threads_per_worker", lambda: 10_000)
    cores = CoreAffinity()
    cores.plan(["camera", "detect"])
    cores.enter("camera", threading.get_native_id())
    assert not cores.measure.granted
    assert "OMP_NUM_THREADS=1" in cores.measure.detail
