"""How tests ask `ridgeline queue doctor` about a planted cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.queue.planted_clusters import Cluster

from ridgeline.cli import main
from ridgeline.records.queue_finding import QueueDiagnosis


def write(cluster: Cluster, folder: Path) -> list[str]:
    """The words that name its files."""
    state = folder / "state.json"
    state.write_text(json.dumps({"kind": "List", "items": cluster.objects}))
    if not cluster.samples:
        return [str(state)]
    rows = ["namespace,pod,gpu,DCGM_FI_DEV_GPU_UTIL"]
    rows += [f"{namespace},{pod},0,{used:.0f}" for namespace, pod, used in cluster.samples]
    (folder / "dcgm.csv").write_text("\n".join(rows) + "\n")
    return [str(state), "--dcgm", str(folder / "dcgm.csv")]


def made(plant: Callable[[Cluster], None], seed: int) -> Cluster:
    cluster = Cluster(seed)
    plant(cluster)
    return cluster


def diagnosed(words: list[str], capsys: pytest.CaptureFixture[str]) -> QueueDiagnosis:
    assert main.run(["queue", "doctor", *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=QueueDiagnosis)
