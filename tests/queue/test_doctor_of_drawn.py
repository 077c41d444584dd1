"""`ridgeline queue doctor` on clusters whose faults no rule had been written for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.queue.asked_doctor import called_ill, diagnosed, made, not_named_first, write
from tests.queue.drawn_clusters import DRAWN, DRAWN_HEALTHY


def test_drawn_faults_are_named_first_with_a_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not not_named_first(DRAWN, tmp_path, capsys)


def test_drawn_healthy_clusters_are_not_called_ill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not called_ill(DRAWN_HEALTHY, tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "lost", "words"),
    [
        ("a Project of Run:ai", 16, "Project nlp has all of the 24 GPUs"),
        ("node pools of Run:ai", 16, "24 GPUs"),
        ("a Department of Run:ai", 16, "Department science has all of the 24 GPUs"),
        ("a webhook that is down", 16, "mutate.example.com does not answer"),
        ("a queue of KAI that is not there", 16, "there is no Queue taem (there are team)"),
        ("a queue of Volcano that is not there", 16, "there is no Queue taem (there are team)"),
        ("a flavor that is not there", 8, "references missing ResourceFlavor(s): all"),
        ("given up by Kueue", 16, "Kueue gave a workload up"),
        ("lent and not taken back", 16, "reclaimWithinCohort is Never"),
        ("not reclaimable", 16, "Queue a has 32 of 16 and is not reclaimable"),
        ("the weight 0", 16, "the weight 0"),
        ("priority in a queue", 16, "4 pods of less priority in ClusterQueue ml"),
        ("pods of sixteen", 24, "asks for 16 GPUs of one node, where the largest has 8"),
        ("a gang of ten", 48, "starts 10 pods of 8 GPUs together"),
        ("half refused", 32, "ResourceQuota research/gpus refuses pods of Job research/pretrain"),
        ("cores by default", 8, "that a LimitRange gives them by default"),
        ("an init container", 28, "has 8 GPUs for an init container that has ended, and uses 1"),
        ("MIG as GPUs", 6 * 2 / 7, "their MIG strategy is single"),
        ("no labels", 24, "no label tells the kind of their GPUs"),
    ],
)
def test_a_drawn_fault_is_told_in_its_own_terms(
    name: str, lost: float, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diagnosed(write(made(DRAWN[name][1], 1), tmp_path), capsys).findings[0]
    assert found.lost_gpus == pytest.approx(lost)
    assert words in found.summary


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("an init container", "convert or load in a job of its own"),
        ("notebooks", "stop notebooks that nobody uses"),
        ("headroom", "less priority than any job has"),
        ("sleeping pods", "let these pods run what they are for"),
        ("GPUs by default", "take GPUs out of the defaults"),
    ],
)
def test_gpus_held_for_nothing_have_a_cure_by_how_that_came_about(
    name: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert way in diagnosed(write(made(DRAWN[name][1], 1), tmp_path), capsys).findings[0].cure


def test_what_is_measured_to_be_in_use_is_not_held_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = made(DRAWN["notebooks"][1], 1)
    cluster.sampled((60, 90))
    causes = [one.cause for one in diagnosed(write(cluster, tmp_path), capsys).findings]
    assert "held-unused" not in causes
