"""How many files one passes to see what becomes of a step, a trace, a recipe or a request.

The numbers are what stood here when they were last counted; a change may lower them, and then
writes the lower one. `python -m tests.passed_files` names the files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.passed_files import KINDS, watching
from tests.serve.http import files_of_a_request

from ridgeline.quantity import seconds

MOST = {
    "a training step": 26,
    "a trace report": 83,  # 81 in a process that did nothing else
    "a launch on Kubernetes": 22,
    "a launch on Slurm": 20,
}
MOST_OF_A_REQUEST = 46
"""44, and up to two more where the machine is busy and a token comes late."""


@pytest.mark.parametrize("kind", KINDS)
def test_it_passes_no_more_files_than_it_did(kind: str, tmp_path: Path) -> None:
    passed = KINDS[kind](tmp_path)
    assert len(passed) <= MOST[kind], sorted(passed)


@pytest.mark.slow
def test_a_streamed_chat_passes_no_more_files_than_it_did(tmp_path: Path) -> None:
    passed = files_of_a_request.files_passed(tmp_path)
    assert len(passed) <= MOST_OF_A_REQUEST, sorted(passed)


def test_a_file_counts_once_its_function_is_called() -> None:
    with watching() as passed:
        seconds(1.0)
        seconds(2.0)
    assert passed == {"quantity.py"}
