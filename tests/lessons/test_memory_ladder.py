"""The C++ of the lesson on the memory's levels, under sanitizers and at every end of its sizes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ridgeline import lessons

SOURCE = Path(lessons.__file__).with_name("memory_ladder.cpp")
WALKS = """#include "SOURCE"
int main() {
    for (std::size_t bytes : {0, 1, 63, 64, 65, 128, 255, 256, 257, 1023, 100000}) {
        if (!(chase_seconds(bytes, 100) >= 0)) return 1;
        for (std::size_t total : {std::size_t{0}, bytes, 3 * bytes + 1})
            if (!(read_bytes_per_second(bytes, total) > 0)) return 2;
    }
}
"""


@pytest.mark.slow
def test_walks_of_any_size_stay_within_their_memory(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ is installed")
    file, program = tmp_path / "walks.cpp", tmp_path / "walks"
    file.write_text(WALKS.replace("SOURCE", str(SOURCE)))
    flags = [
        "-std=c++20",
        "-O1",
        "-g1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    subprocess.run(["g++", *flags, str(file), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
