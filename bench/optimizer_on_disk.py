"""A step whose optimizer state lies on disk, beside what the disk's measured bandwidth foretells.

    python bench/optimizer_on_disk.py FOLDER [--matrices 30] [--rounds 4]

FOLDER lies on the disk. In each round the disk is probed (as `ridgeline hardware --probe --disk`
does it) and AdamW steps once over so many matrices of 2048 x 2048, so that both meet the same
machine. A ratio of 1: the step took what theory says it takes at least; below: the probe was held
up more than the step was.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import nn

from ridgeline.cost.disk_state import disk_state_seconds
from ridgeline.measure.storage import probe_storage
from ridgeline.train.optimizers.adamw import AdamW

_SIDE = 2048


def main() -> None:
    """Print a row for each round, and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--matrices", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    weights = [nn.Parameter(torch.zeros(_SIDE, _SIDE)) for _ in range(asked.matrices)]
    optimizer = AdamW([{"params": weights, "lr": 1e-3}])
    state = optimizer.keep_on_disk(asked.folder, torch.device("cpu"))
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    for _ in range(2):  # the second reads what the first wrote
        optimizer.step()
    print(f"{state.size_bytes / 1e9:.3g} GB of state\n")
    print("| read, MB/s | written, MB/s | foretold, s | step, s | ratio |\n|---|---|---|---|---|")
    ratios = []
    for _ in range(asked.rounds):
        rates = probe_storage(asked.folder)
        read, written = rates.sequential_bytes_per_second, rates.write_bytes_per_second
        foretold = disk_state_seconds(float(state.size_bytes), read, written)
        started = perf_counter()
        optimizer.step()
        took = perf_counter() - started
        ratios.append(took / foretold)
        cells = (f"{read / 1e6:.0f}", f"{written / 1e6:.0f}", f"{foretold:.2f}", f"{took:.2f}")
        print(f"| {' | '.join(cells)} | {ratios[-1]:.2f} |")
    print(f"\nmedian ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
