"""Agreement with 1,500 answers of a real kube-apiserver 1.36.2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ridgeline.launch.check import Document, check_manifests

ROOT = Path(__file__).parents[3]
VERDICTS = ROOT.parent / "shared/data/k8s/manifest_verdicts.jsonl.gz"

sys.path.insert(0, str(ROOT / "bench"))
import manifest_verdicts  # noqa: E402

pytestmark = pytest.mark.skipif(not VERDICTS.exists(), reason=f"{VERDICTS} is not here")


@pytest.fixture(scope="module")
def rows():
    return manifest_verdicts.read_rows(VERDICTS)


@pytest.fixture(scope="module")
def scores(rows):
    return manifest_verdicts.score(rows)


@pytest.mark.parametrize(("family", "least"), [("core", 0.99), ("custom", 0.995)])
def test_we_accept_and_reject_what_the_server_does(scores, family, least):
    assert scores[family].objects > 400
    assert scores[family].agreement >= least, "\n".join(scores[family].failures)


@pytest.mark.parametrize("family", ["core", "custom"])
def test_we_name_the_field_that_the_server_names(scores, family):
    assert scores[family].rejected > 200
    assert scores[family].named_share >= 0.99, "\n".join(scores[family].failures)


def test_the_only_disagreements_need_a_cluster(scores):
    # A PodGroup names a PriorityClass or a Workload that the server has not got.
    assert all("PodGroup" in failure for failure in scores["core"].failures)


def test_no_stricter_rule_calls_an_official_example_broken(rows):
    untouched = [r for r in rows if r["mutation"] == "none" and r["verdict"]["accepted"]]
    verdicts = check_manifests([Document(r["source"], r["manifest"]) for r in untouched])
    assert len(verdicts) > 100
    broken = [(v.source, p.rule, p.field) for v in verdicts for p in v.problems if not v.runs]
    assert broken == []
    assert sum(len(v.problems) for v in verdicts) <= 10


@pytest.mark.parametrize(
    "mutation",
    ["fractional_gpu", "gpu_req_ne_lim", "gpu_req_only", "missing_volume", "restart_bogus"],
)
def test_we_find_what_the_server_lets_through_inside_custom_resources(rows, mutation):
    planted = [
        Document(r["source"], r["manifest"])
        for r in rows
        if r["mutation"] == mutation
        and r["verdict"]["accepted"]
        and not r["manifest_kind"].startswith(("v1/", "resource.k8s.io/"))
    ]
    assert len(planted) >= 30
    assert [v.source for v in check_manifests(planted) if v.runs] == []
