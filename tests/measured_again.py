"""Count a network in an interpreter that has timm, which the suite's own need not have."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

PYTHON = os.environ.get("RIDGELINE_VISION_PYTHON")
SOURCE = Path(__file__).parents[1] / "src"
CODE = """
import json, sys
from ridgeline.measure.network.source import read_network
size = int(sys.argv[2]) or None
network = read_network(sys.argv[1], size and (size, size))
print(json.dumps({"macs": network.macs, "activations": network.activations,
                  "parameters": network.parameters}))
"""


def count_again(source: str, size: int | None) -> dict[str, int]:
    """MACs, activations and parameters of a library's model, counted there."""
    assert PYTHON is not None
    done = subprocess.run(
        [PYTHON, "-c", CODE, source, str(size or 0)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
