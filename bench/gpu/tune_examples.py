"""`ridgeline tune` over example scripts on this machine's GPU, as one Markdown table.

    python bench/gpu/tune_examples.py [SECONDS_PER_SCRIPT]

Every row is a whole job: the script as it stood, the techniques that proved themselves, and the
full stack against the script as it stood in an A/B run of interleaved blocks, with its interval.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from ridgeline.errors import RidgelineError
from ridgeline.measure.probe import ceilings
from ridgeline.records import Ledger
from ridgeline.tune.job import TuneJob
from ridgeline.tune.tuner import tune

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ("train_gpt.py", "train_cnn.py", "train_input_bound.py", "infer.py")
SECONDS = 55.0


def row_of(script: str, ledger: Ledger, seconds: float) -> str:
    low, high = ledger.cumulative_ci
    step = ledger.baseline.step_seconds.p50
    tuned = ledger.tuned.step_seconds.p50 if ledger.tuned else step
    mfu = "–" if ledger.baseline.mfu is None else f"{ledger.baseline.mfu:.1%}"
    after = ledger.tuned.mfu if ledger.tuned else ledger.baseline.mfu
    return " | ".join(
        [
            f"| {script}",
            f"{step * 1e3:.2f}",
            f"{tuned * 1e3:.2f}",
            f"{ledger.cumulative:.2f} [{low:.2f}, {high:.2f}]",
            f"{mfu} → {'–' if after is None else f'{after:.1%}'}",
            ", ".join(ledger.stack_rows) or "nothing",
            f"{seconds:.0f} |",
        ]
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    when = datetime.now(UTC).date()
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, {when}\n")
    print("| script | ms before | ms after | gain [95 %] | MFU | kept | seconds |")
    print("|---|---|---|---|---|---|---|")
    peaks = ceilings(device=device, quick=True)
    for script in SCRIPTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            job = TuneJob(
                command=[str(EXAMPLES / script)], out=Path(folder), budget_seconds=seconds
            )
            try:
                ledger = tune(job, ceilings=peaks)
            except RidgelineError as error:
                print(f"| {script} | failed: {error} | | | | | |", flush=True)
                continue
        print(row_of(script, ledger, time.monotonic() - began), flush=True)


if __name__ == "__main__":
    main()
