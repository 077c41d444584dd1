"""A steady process from start to stop: what it is given, what it is refused, what it gives back."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ridgeline.realtime.steady import NOTHING, SteadyProcess
from ridgeline.realtime.steady.affinity import CoreAffinity
from ridgeline.realtime.steady.priority import FifoPriority

needs_fifo = pytest.mark.skipif(
    not hasattr(os, "SCHED_FIFO") or os.geteuid() != 0,
    reason="real-time priority is not ours to give here",
)

STATE = """
import ctypes, gc, json, os, subprocess, sys, threading
from ridgeline.realtime.steady import SteadyProcess

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(key + ":"))

def state():
    return {
        "policy": os.sched_getscheduler(0), "priority": os.sched_getparam(0).sched_priority,
        "cores": sorted(os.sched_getaffinity(0)), "thresholds": gc.get_threshold(),
        "frozen": gc.get_freeze_count(), "callbacks": len(gc.callbacks),
        "locked": int(status("VmLck")) > 0, "slack": ctypes.CDLL(None).prctl(30, 0, 0, 0, 0),
        "files": len(os.listdir("/proc/self/fd")),
    }

def shown(steady):
    return {one.name: (one.granted, one.detail) for one in steady.measures}
"""


def program(body: str) -> Any:
    """What a program of its own prints, as JSON."""
    words = [sys.executable, "-c", STATE + body]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait_until_the_system_has_let_go_of(thread: int) -> None:
    """A thread that was joined is through with Python; the kernel may need a moment more."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/self/task/{thread}").exists():
        assert time.monotonic() < deadline, f"thread {thread} is still there"
        time.sleep(0.001)


WHOLE_RUN = """
before = state()
steady = SteadyProcess()
steady.start(["detect"])
steady.enter_worker("detect")
steady.warmed_up()
child = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"],
                       capture_output=True, text=True, check=True).stdout
during = state()
for _ in range(30):
    for _ in range(1000):
        cycle = []
        cycle.append(cycle)
    steady.idle(10.0)
steady.stop()
steady.stop()
print(json.dumps([before, during, state(), shown(steady), child.strip(),
                  [one.thread for one in steady.collections]]))
"""


@needs_fifo
def test_everything_that_was_taken_is_given_back() -> None:
    before, during, after, shown, child, payers = program(WHOLE_RUN)
    assert after == before
    assert during["policy"] & 0xFF == os.SCHED_FIFO
    assert during["priority"] == 49
    assert during["locked"]
    assert during["frozen"] > 1000
    assert during["slack"] <= 1, "real-time threads have none at all"
    assert len(during["cores"]) == 1
    assert child == "0", "what a stage starts is no real-time process"
    for name in ("affinity", "fifo", "gc", "memory lock", "freed memory kept", "warm-up"):
        assert shown[name][0], shown[name]
    assert set(payers) == {"slack"}


def test_what_the_system_refuses_is_said_with_what_would_allow_it() -> None:
    shown, before, after = program("""
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
before = state()
steady = SteadyProcess()
steady.start(["detect"])
steady.enter_worker("detect")
steady.warmed_up()
block = bytearray(1 << 24)  # past the limit of locked memory
steady.stop()
print(json.dumps([shown(steady), before, state()]))
""")
    granted, detail = shown["fifo"]
    assert not granted
    for cure in ("rtprio", "cap_sys_nice", "--cap-add SYS_NICE"):
        assert cure in detail
    granted, detail = shown["memory lock"]
    assert not granted
    assert "ulimit -l unlimited" in detail
    assert shown["gc"][0]
    assert after == before


@needs_fifo
def test_a_users_limit_is_used_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (7, 7))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    fifo = FifoPriority()
    seen = []

    def worker() -> None:
        thread = threading.get_native_id()
        fifo.enter("detect", thread)
        seen.append((os.sched_getscheduler(0) & 0xFF, os.sched_getparam(0).sched_priority))
        fifo.undo({thread})

    started = threading.Thread(target=worker)
    started.start()
    started.join()
    assert seen == [(os.SCHED_FIFO, 7)]
    assert fifo.measure.detail == "SCHED_FIFO 7: detect"


@needs_fifo
def test_threads_that_end_while_we_look_at_them_break_nothing() -> None:
    fifo, cores = FifoPriority(), CoreAffinity()
    cores.plan(["detect"])
    ended = []

    def worker() -> None:
        thread = threading.get_native_id()
        fifo.enter("detect", thread)
        cores.enter("detect", thread)
        ended.append(thread)

    started = threading.Thread(target=worker)
    started.start()
    started.join()
    wait_until_the_system_has_let_go_of(ended[0])
    fifo.enter("the threads of torch", ended[0])
    cores.enter_pool("detect", ended[0])
    fifo.undo(set(ended))
    cores.undo(set(ended))
    assert fifo.measure.detail == "SCHED_FIFO 49: detect"


@needs_fifo
def test_a_worker_process_begins_again_for_itself() -> None:
    child, parent, after = program("""
steady = SteadyProcess()
steady.start(["camera"])
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    inherited = state()
    steady.enter_worker("camera")
    steady.warmed_up()
    os.write(write, json.dumps([inherited, state(), shown(steady)]).encode())
    os._exit(0)
os.waitpid(pid, 0)
during = state()
steady.stop()
print(json.dumps([json.loads(os.read(read, 1 << 16)), during, state()]))
""")
    inherited, entered, shown = child
    assert inherited["policy"] == 0
    assert not inherited["locked"]
    assert entered["policy"] & 0xFF == os.SCHED_FIFO
    assert entered["locked"]
    assert len(entered["cores"]) == 1
    assert entered["callbacks"] == inherited["callbacks"]
    assert entered["frozen"] >= inherited["frozen"] > 1000
    assert "real-time throttle" not in shown, "the parent has looked"
    assert parent["cores"] == sorted(os.sched_getaffinity(0))
    assert after["policy"] == 0


def test_without_the_switch_a_process_is_left_as_it_is() -> None:
    NOTHING.start(["detect"])
    NOTHING.enter_worker("detect")
    NOTHING.warmed_up()
    NOTHING.idle(1.0)
    NOTHING.stop()
    assert NOTHING.measures == NOTHING.collections == []


def test_a_run_without_warm_up_says_so() -> None:
    measures = {one.name: one for one in SteadyProcess().measures}
    assert not measures["warm-up"].granted
    assert "no frames were run before" in measures["warm-up"].detail
