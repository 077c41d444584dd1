"""The table by which workers take test files."""

from __future__ import annotations

from pathlib import Path

from tests.file_seconds import known, measured

ROOT = Path(__file__).parents[1]


def test_a_file_costs_what_its_tests_and_fixtures_cost() -> None:
    lines = [
        "============ slowest durations ============",
        "120.02s call     tests/a/test_x.py::test_one[a-b]",
        "2.00s setup    tests/a/test_x.py::test_one[a-b]",
        "3.10s teardown tests/b/test_y.py::test_two",
        "0.10s call     tests/c/test_z.py::test_three",
    ]
    assert measured(lines) == {"tests/a/test_x.py": 122.0, "tests/b/test_y.py": 3.1}


def test_the_table_names_files_that_are_there() -> None:
    assert [name for name in known() if not (ROOT / name).exists()] == []
