"""Six rules of placement on seventeen openb workloads, beside what their authors published.

    python bench/queue_published.py PUBLISHED OPENB [--seeds 3] [--workload gpuspec33]

PUBLISHED is `experiments/analysis/expected_results` of the simulator of Weng et al., ATC 2023
(github.com/hkust-adsl/kubernetes-scheduler-simulator), OPENB the folder
`cluster-trace-gpu-v2023/csv` of github.com/alibaba/clusterdata.

Prints, by workload, how far the mean allocation over the seeds lies from the published mean at 80
to 130 % of arrivals, in points (the largest of all rules), the same for the fragmented share of all
GPUs, and whether the rules stand in the published order at 120 %, pairs within half a point apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

RULES = {"01-Random": "random", "02-DotProd": "dot-product", "03-GpuClustering": "clustering",
         "04-GpuPacking": "packing", "05-BestFit": "best-fit", "06-FGD": "fgd"}  # fmt: skip
PERCENTS = range(80, 131, 10)
Means = dict[tuple[str, int], float]
"""Percent of all GPUs, by rule and arrived percent."""


def main() -> None:
    """Print one line per workload."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("published", type=Path)
    parser.add_argument("openb", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workload", action="append")
    asked = parser.parse_args()
    allocated = published(asked.published / "analysis_allo_discrete.csv")
    fragmented = published(asked.published / "analysis_frag_discrete.csv")
    print(
        "| workload | allocation, points off | fragmented, points off | order |\n|---|---|---|---|"
    )
    for workload in asked.workload or sorted(allocated):
        ours = placed(asked.openb, workload, asked.seeds)
        errors = [
            max(
                (abs(found[key] - theirs[workload][key]), key)
                for key in found.keys() & theirs[workload].keys()
            )
            for found, theirs in zip(ours, (allocated, fragmented), strict=True)
        ]
        told = [f"{error:.2f} ({rule}, {percent} %)" for error, (rule, percent) in errors]
        kept = in_order(ours[0], allocated[workload])
        print(f"| {workload} | {' | '.join(told)} | {kept} |", flush=True)


def published(path: Path) -> dict[str, Means]:
    """Means over the seeds of a published table, by workload."""
    found: dict[str, dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open() as file:
        for row in csv.DictReader(file):
            workload = row["workload"].removeprefix("openb_pod_list_")
            for percent in PERCENTS:
                key = (RULES[row["sc_policy"]], percent)
                found[workload][key].append(float(row[str(percent)]))
    return {
        name: {key: statistics.fmean(values) for key, values in one.items()}
        for name, one in found.items()
    }


def placed(openb: Path, workload: str, seeds: int) -> tuple[Means, Means]:
    """What our command allocates and fragments."""
    rules = [word for name in RULES.values() for word in ("--policy", name)]
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline.cli.main", "queue", "place",
         str(openb / f"openb_pod_list_{workload}.csv"), "--cluster",
         str(openb / "openb_node_list_gpu_node.csv"), "--seeds", str(seeds), *rules, "--json"],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    points = [
        ((one["policy"], round(100 * point["arrived_share"])), point)
        for one in json.loads(done.stdout)["policies"]
        for point in one["points"]
    ]
    allocated, fragmented = (
        {key: 100 * point[name] for key, point in points if key[1] in PERCENTS}
        for name in ("allocated_share", "fragmented_share")
    )
    return allocated, fragmented


def in_order(ours: Means, theirs: Means) -> str:
    """Whether rules more than half a point apart stand in the published order at 120 %."""
    wrong = [
        f"{first} and {second}"
        for first, second in combinations(RULES.values(), 2)
        if abs(gap := theirs[first, 120] - theirs[second, 120]) > 0.5
        and gap * (ours[first, 120] - ours[second, 120]) <= 0
    ]
    return ", ".join(wrong) or "kept"


if __name__ == "__main__":
    main()
