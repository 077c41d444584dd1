"""Lines wait where a disk is full, and none is lost."""

from __future__ import annotations

import resource
from pathlib import Path

from ridgeline.records.appended import AppendedFile


def test_lines_that_found_no_room_go_out_with_the_next_that_does(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = AppendedFile(path)
    assert file.append(b"one", sync=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
    try:
        assert not file.append(b"two")
        assert not file.append(b"three", sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.append(b"four")
    file.close()
    assert path.read_text().splitlines() == ["one", "two", "three", "four"]
