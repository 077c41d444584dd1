"""What is said of the machine and the versions behind a measurement."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ridgeline.hardware.environment import FROM_SOURCE, environment, installed


def test_a_checkout_that_nobody_installed_says_so() -> None:
    code = (
        "import importlib.metadata as known\n"
        "found = known.distribution\n"
        "def hidden(name):\n"
        "    if name == 'ridgeline':\n"
        "        raise known.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "known.distribution = hidden\n"
        "from ridgeline.cli.main import main\n"
        "main()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"ridgeline {FROM_SOURCE}\n"


def test_variables_are_told_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("KMP_AFFINITY", raising=False)
    said = environment(device="a card", variables=("OMP_NUM_THREADS", "KMP_AFFINITY"))
    assert said.variables == {"OMP_NUM_THREADS": "3"}
    assert said.device == "a card"
    assert environment().device == said.host_cpu
    assert said.torch == installed("torch")
