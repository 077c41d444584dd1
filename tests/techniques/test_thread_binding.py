"""Threads bound by the OpenMP runtime: variables of the process, set before its first line."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.techniques.profiles import FAULTY_BINDING, context, replaced

from ridgeline.cli.main import run
from ridgeline.techniques import options_of, technique
from ridgeline.tune.patch import write_patch

BINDING = technique("thread-binding")
SCRIPT = """
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader


def cores(_=None):
    return sorted(os.sched_getaffinity(0))


class Cores(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor(cores())


model = torch.nn.Linear(600, 600)
for _ in range(4):
    model(torch.randn(600, 600)).mean().backward()
threads = [os.sched_getaffinity(int(one.name)) for one in Path("/proc/self/task").iterdir()]
(worker,) = {tuple(one[0].tolist()) for one in DataLoader(Cores(), num_workers=1)}
print([sorted(one) for one in threads], list(worker))
"""


@pytest.fixture
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing to bind to")
@pytest.mark.usefixtures("unbound")
def test_a_stack_binds_each_thread_of_the_pool_and_leaves_workers_all_cores(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (options,) = options_of(BINDING, FAULTY_BINDING)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "stack.toml").write_text(
        "[[technique]]\nname = 'thread-binding'\n"
        f"[technique.options]\nruntime = '{options['runtime']}'\n"
    )
    words = ["run", "--stack", str(tmp_path / "stack.toml"), "--", str(tmp_path / "train.py")]
    assert run(words) == 0
    threads, worker = ast.literal_eval(capfd.readouterr().out.replace("] [", "], ["))
    mine = sorted(os.sched_getaffinity(0))
    assert len({tuple(one) for one in threads if len(one) < len(mine)}) >= 2
    assert worker == mine
    assert sorted(os.sched_getaffinity(0)) == mine


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing to bind to")
@pytest.mark.usefixtures("unbound")
def test_a_patched_script_binds_its_threads_itself_before_its_first_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (options,) = options_of(BINDING, FAULTY_BINDING)
    script = tmp_path / "train.py"
    script.write_text(f'"""Trains."""\nfrom __future__ import annotations\n{SCRIPT}')
    started = replace(FAULTY_BINDING.profile.environment, command=[str(script)])
    edits = BINDING.edits(replaced(FAULTY_BINDING, environment=started), options)
    patch = write_patch([("thread-binding", edit) for edit in edits], tmp_path, tmp_path)
    (text,) = patch.files.values()
    script.write_text(text)
    words = [sys.executable, str(script)]
    seen = subprocess.run(words, capture_output=True, text=True, check=True)
    threads, worker = ast.literal_eval(seen.stdout.replace("] [", "], ["))
    mine = sorted(os.sched_getaffinity(0))
    assert len({tuple(one) for one in threads if len(one) < len(mine)}) >= 2
    assert worker == mine


@pytest.mark.usefixtures("unbound")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cpu_seconds": 0.11}, "one thread computes nearly everything"),
        ({"cpu_wait_seconds": 0.05}, "other work takes its cores for 50% of a step"),
        ({"num_threads": 8}, "it has more threads than cores"),
    ],
)
def test_threads_are_left_to_the_kernel_where_binding_cannot_help(
    changes: dict[str, float], reason: str
) -> None:
    settings = replace(FAULTY_BINDING.profile.settings, **changes)
    assert BINDING.applies(replaced(FAULTY_BINDING, settings=settings)).reason == reason


def test_ranks_are_not_bound_to_each_others_cores() -> None:
    reason = BINDING.applies(replaced(FAULTY_BINDING, world_size=2)).reason
    assert reason == "several ranks would be bound to the same cores"


def test_whoever_binds_threads_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_CPU_AFFINITY", "0-1")
    assert BINDING.applies(FAULTY_BINDING).reason == "GOMP_CPU_AFFINITY is set"


def test_a_script_of_one_busy_thread_gets_no_binding() -> None:
    assert not BINDING.applies(context(settings={"cpu_seconds": 0.1})).ok
