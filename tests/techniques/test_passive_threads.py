"""Threads of OpenMP that sleep while they wait, on cores that others want."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.techniques.profiles import faulty, replaced

from ridgeline.cli.main import run
from ridgeline.techniques import options_of, technique
from ridgeline.tune.patch import write_patch

PASSIVE = technique("passive-threads")
CROWDED = faulty()["passive-threads"]
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
MANY_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: no thread waits for another"
)
SCRIPT = """
import os
import time
from pathlib import Path

import torch

torch.set_num_threads(2)
model = torch.nn.Linear(4, 4)
model(torch.randn(4, 4))


def busy_of_others():
    tasks = [one for one in Path("/proc/self/task").iterdir() if int(one.name) != os.getpid()]
    return sum(int((one / "schedstat").read_text().split()[0]) for one in tasks) / 1e6


shared = torch.zeros(1 << 16)
shared.add_(1)
before = busy_of_others()
for _ in range(10):
    shared.add_(1)
    time.sleep(0.03)
print(busy_of_others() - before)
"""
SPINS_MS, SLEEPS_MS = 8.0, 4.0
"""CPU time of the pool's second thread around ten operators: libgomp spins 300,000 times each."""


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*WAITING, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@MANY_CORES
@pytest.mark.usefixtures("unsaid")
@pytest.mark.parametrize("way", ["stack", "patch"])
def test_threads_that_spun_between_operators_sleep(way: str, tmp_path: Path) -> None:
    (options,) = options_of(PASSIVE, CROWDED)
    script = tmp_path / "train.py"
    script.write_text(f'"""Trains."""\nfrom __future__ import annotations\n{SCRIPT}')
    words = [sys.executable, str(script)]
    if way == "stack":
        (tmp_path / "stack.toml").write_text(
            "[[technique]]\nname = 'passive-threads'\n"
            f"[technique.options]\nruntime = '{options['runtime']}'\n"
        )
        stack = ["--stack", str(tmp_path / "stack.toml")]
        words = [sys.executable, "-m", "ridgeline.cli.main", "run", *stack, "--", str(script)]
    else:
        assert _milliseconds(words) > SPINS_MS
        started = replace(CROWDED.profile.environment, command=[str(script)])
        edits = PASSIVE.edits(replaced(CROWDED, environment=started), options)
        patch = write_patch([("passive-threads", edit) for edit in edits], tmp_path, tmp_path)
        (text,) = patch.files.values()
        script.write_text(text)
    assert _milliseconds(words) < SLEEPS_MS


def _milliseconds(words: list[str]) -> float:
    seen = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(seen.stdout.split()[-1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_threads": 1}, "one thread waits for no other"),
        ({"peer_wait_seconds": 0.0}, "one thread computes nearly everything"),
        (
            {"cpu_wait_seconds": 0.03, "peer_wait_seconds": 0.03},
            "its threads waited for a core for 30% of a step",
        ),
    ],
)
def test_threads_spin_on_where_nobody_waits(changes: dict[str, Any], reason: str) -> None:
    settings = replace(CROWDED.profile.settings, **changes)
    assert PASSIVE.applies(replaced(CROWDED, settings=settings)).reason == reason


@pytest.mark.parametrize("name", WAITING)
def test_whoever_says_how_threads_wait_is_left_alone(name: str) -> None:
    said = replace(CROWDED.profile.environment, variables={name: "1"})
    assert PASSIVE.applies(replaced(CROWDED, environment=said)).reason == f"{name} is set"


@pytest.fixture
def neighbours() -> Iterator[None]:
    """As many programs as there are cores, each of which wants one."""
    words = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(words) for _ in os.sched_getaffinity(0)]
    yield
    for one in started:
        one.kill()
        one.wait()


@pytest.mark.slow
@MANY_CORES
@pytest.mark.usefixtures("unsaid", "neighbours")
def test_doctor_names_threads_that_spin_beside_other_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "layers = [nn.Linear(256, 256) for _ in range(8)]\n"
        "model = nn.Sequential(*layers)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for _ in range(2000):\n"
        "    loss = model(torch.randn(256, 256)).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    words = ["doctor", "--steps", "20", "--out", str(tmp_path / "out"), "--json", "--"]
    assert run([*words, str(tmp_path / "train.py")]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert "crowded-threads" in {one["cause"] for one in findings}
