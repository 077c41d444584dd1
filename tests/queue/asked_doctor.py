"""How tests ask `ridgeline queue doctor` about a planted cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.queue.planted_clusters import Cluster

from ridgeline.cli import main
from ridgeline.records.queue_finding import QueueDiagnosis

Plant = Callable[[Cluster], None]


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


def not_named_first(
    planted: Mapping[str, tuple[str, Plant]], folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, list[str]]:
    """Planted clusters whose cause is not named first, with what is; each cure is whole."""
    missed = {}
    for name, (cause, plant) in planted.items():
        found = diagnosed(write(made(plant, 1), folder), capsys).findings
        if [one.cause for one in found][:1] != [cause]:
            missed[name] = [one.cause for one in found]
            continue
        assert all(isinstance(part, dict) for part in yaml.safe_load_all(found[0].setting))
        assert "{" not in found[0].cure
    return missed


def called_ill(
    healthy: Mapping[str, Plant], folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, list[str]]:
    """Healthy clusters in which something is found, with what is said of them."""
    alarms = {}
    for name, plant in healthy.items():
        if found := diagnosed(write(made(plant, 1), folder), capsys).findings:
            alarms[name] = [one.summary for one in found]
    return alarms
