"""What the simulator says the cures of the cluster's doctor are worth, beside GPUs counted as lost.

    python -m bench.queue_worth

Each planted cluster of the tests (of Kubernetes with two seeds, of Slurm once) is diagnosed; of its
costliest finding the GPUs lost and the GPUs more at work are summed up by cause, as a table.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.queue.planted_clusters import PLANTED, Cluster
from tests.queue.slurm_clusters import FAULTS, SlurmCluster
from tests.queue.strange_clusters import STRANGE
from tests.queue.unseen_clusters import UNSEEN

from ridgeline.queue.doctor.diagnose import diagnose_cluster
from ridgeline.queue.readers.cluster_state import read_cluster_state
from ridgeline.records.queue_finding import QueueFinding

SEEDS = (1, 2)


def first_findings(folder: Path) -> Iterator[QueueFinding]:
    """The costliest finding of each planted cluster."""
    state, squeue, samples = (folder / name for name in ("state.json", "squeue.txt", "dcgm.csv"))
    for seed in SEEDS:
        for _, plant in {**PLANTED, **STRANGE, **UNSEEN}.values():
            cluster = Cluster(seed)
            plant(cluster)
            state.write_text(json.dumps({"kind": "List", "items": cluster.objects}))
            rows = [f"{space},{pod},{used:.0f}" for space, pod, used in cluster.samples]
            samples.write_text("\n".join(["namespace,pod,utilisation", *rows]))
            live = read_cluster_state([state], dcgm=samples if rows else None)
            yield diagnose_cluster(live).findings[0]
    for _, fault in FAULTS.values():
        printed = SlurmCluster()
        fault(printed)
        state.write_text(printed.sinfo())
        squeue.write_text(printed.squeue())
        yield diagnose_cluster(read_cluster_state([state, squeue])).findings[0]


def main() -> None:
    """Print the table."""
    by_cause: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    untold = 0
    with tempfile.TemporaryDirectory() as folder:
        for one in first_findings(Path(folder)):
            if one.worth is None:
                untold += 1
                continue
            gain = one.worth.cured_working_gpus - one.worth.working_gpus
            shorter = one.worth.cured_mean_wait_seconds < one.worth.mean_wait_seconds
            by_cause[one.cause].append((one.lost_gpus, gain, shorter))
    print(
        "| cause | findings | GPUs lost, counted | GPUs more at work, simulated | waits shorter |"
    )
    print("|---|---|---|---|---|")
    for cause, found in sorted(by_cause.items()):
        lost, gain, shorter = (sum(column) for column in zip(*found, strict=True))
        print(f"| {cause} | {len(found)} | {lost:.1f} | {gain:.1f} | {shorter} |")
    print(f"\n{untold} are not simulated")


if __name__ == "__main__":
    main()
