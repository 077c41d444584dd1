"""What reads requests and writes replies starts without what only images and engines need."""

from __future__ import annotations

import subprocess
import sys

from tests.serve.http.servers import LIBRARY

ASK = f"""
import sys
from pathlib import Path
import ridgeline.serve.http.front
from ridgeline.records.input_file import read_json
read_json(Path({str(LIBRARY / "tokenizer.json")!r}), dict)  # some thousand brackets
from ridgeline.serve.http.protocol.chat import ChatRequest
heavy = {{"numpy", "torch", "transformers", "ridgeline.serve.cluster.remote"}}
print(sorted(heavy & set(sys.modules)), ChatRequest.__pydantic_complete__)
"""


def test_the_front_imports_no_library_of_arrays_and_describes_no_request() -> None:
    ask = [sys.executable, "-c", ASK]
    done = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
