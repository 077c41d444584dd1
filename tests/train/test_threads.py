"""How threads of a run wait, by what Linux says of the machine's cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.hardware import core_pressure
from ridgeline.train import start

BUSY = "some avg10=63.20 avg60=12.00 avg300=3.00 total=9\nfull avg10=0.00 avg60=0.00 total=0\n"


@pytest.mark.parametrize(
    ("pressure", "given", "policy"),
    [
        (BUSY, {"OMP_NUM_THREADS": "2"}, "passive"),
        (BUSY.replace("63.20", "4.00"), {"OMP_NUM_THREADS": "2"}, None),
        (BUSY, {"OMP_NUM_THREADS": "1"}, None),
        (BUSY, {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "100"}, None),
        ("", {"OMP_NUM_THREADS": "2"}, None),
    ],
    ids=["busy", "quiet", "one thread", "the user says how", "not counted"],
)
def test_threads_sleep_where_others_want_the_cores_and_nobody_says_how_they_wait(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pressure: str,
    given: dict[str, str],
    policy: str | None,
) -> None:
    monkeypatch.setattr(core_pressure, "PRESSURE", tmp_path / "cpu")
    if pressure:
        (tmp_path / "cpu").write_text(pressure)
    found, told = start.thread_variables(1, given)
    assert found.get("OMP_WAIT_POLICY") == policy
    assert ("63%" in told) == (policy is not None)
    assert found["OMP_NUM_THREADS"] == given["OMP_NUM_THREADS"]


def test_ranks_of_one_machine_share_its_cores() -> None:
    counts = [int(start.thread_variables(n, {})[0]["OMP_NUM_THREADS"]) for n in (1, 1000)]
    assert counts[0] >= counts[1] == 1
