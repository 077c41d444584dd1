"""Each rule of ours: silent on a sound job, and at the right field on a planted defect."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launch.check.manifests import (
    JOB_SET_POD,
    changed,
    container,
    job,
    job_set,
    named,
    pod_spec,
    ray_cluster,
    verdict,
    volcano_job,
)

from ridgeline.launch.check import Document, check_manifests
from ridgeline.launch.check.stricter import stricter_rules

C = f"{JOB_SET_POD}.containers[0]"
GPU = "nvidia.com/gpu"
SHM = f"{JOB_SET_POD}.volumes[0]"
TASK = "spec.tasks[0].template.spec"
WORKERS = "spec.workerGroupSpecs[0].template.spec"
REQUIRED = "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"
BALANCED = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname"},
        ],
    },
}


def two_templates():
    """A job set whose two templates are meant to agree."""
    found = job_set()
    first = found["spec"]["replicatedJobs"][0]
    second = changed(first, "name", "more")
    found["spec"]["replicatedJobs"] = [first, second]
    return found


def half_nodes():
    """Pods of four GPUs."""
    found = changed(job_set(), f"{C}.resources", {"limits": {GPU: 4}})
    return changed(found, f"{C}.command", ["torchrun", "--nproc-per-node=4", "--rdzv-id=1"])


SECOND = C.replace("replicatedJobs[0]", "replicatedJobs[1]")
PLANTED = [
    ("gpu-requests-differ", job_set(), f"{C}.resources.limits[{GPU}]", "4",
     f"{C}.resources.requests[{GPU}]"),
    ("gpu-fraction", job_set(), f"{C}.resources", {"limits": {GPU: "0.5"}},
     f"{C}.resources.limits[{GPU}]"),
    ("gpu-fraction", ray_cluster(), f"{WORKERS}.containers[0].resources", {"limits": {GPU: "500m"}},
     f"{WORKERS}.containers[0].resources.limits[{GPU}]"),
    ("gpu-limit-missing", job_set(), f"{C}.resources.limits", ..., f"{C}.resources.limits"),
    ("missing-volume", job_set(), f"{C}.volumeMounts[0].name", "no", f"{C}.volumeMounts[0].name"),
    ("missing-volume", volcano_job(), f"{TASK}.volumes[0].name", "other",
     f"{TASK}.containers[0].volumeMounts[0].name"),
    ("restart-policy", job_set(), f"{JOB_SET_POD}.restartPolicy", "Sometimes",
     f"{JOB_SET_POD}.restartPolicy"),
    ("restart-policy", job_set(), f"{JOB_SET_POD}.restartPolicy", "Always",
     f"{JOB_SET_POD}.restartPolicy"),
    ("restart-policy", ray_cluster(), f"{WORKERS}.restartPolicy", "Sometimes",
     f"{WORKERS}.restartPolicy"),
    ("pod-refused", job_set(), f"{C}.name", "Not_Valid", f"{C}.name"),
    ("pod-refused", job_set(), f"{C}.env[0].name", "A=B", f"{C}.env[0].name"),
    ("no-gang", job_set(), "metadata.labels", ..., "metadata.labels"),
    ("no-gang", ray_cluster(), "metadata.labels", ..., "metadata.labels"),
    ("no-gang", job(), "spec.parallelism", 4, "metadata.labels"),
    ("gang-too-large", volcano_job(), "spec.minAvailable", 5, "spec.minAvailable"),
    ("replica-range", ray_cluster(), "spec.workerGroupSpecs[0].minReplicas", 9,
     "spec.workerGroupSpecs[0].minReplicas"),
    ("spread-placement", job_set(), f"{JOB_SET_POD}.topologySpreadConstraints", BALANCED,
     f"{JOB_SET_POD}.topologySpreadConstraints[0]"),
    ("spread-placement", half_nodes(), f"{JOB_SET_POD}.affinity", APART,
     f"{JOB_SET_POD}.{REQUIRED}[0].topologyKey"),
    ("priority-class", job_set(), f"{JOB_SET_POD}.priorityClassName", ...,
     f"{JOB_SET_POD}.priorityClassName"),
    ("priority-class", two_templates(),
     SECOND.removesuffix(".containers[0]") + ".priorityClassName", "other",
     f"{JOB_SET_POD}.priorityClassName"),
    ("shared-memory", job_set(), f"{C}.volumeMounts[0].mountPath", "/scratch", f"{C}.volumeMounts"),
    ("shared-memory", job_set(), f"{SHM}.emptyDir", {}, f"{C}.volumeMounts[0]"),
    ("checkpoint-volume", job_set(), f"{JOB_SET_POD}.volumes[1]",
     {"name": "checkpoints", "emptyDir": {}}, f"{JOB_SET_POD}.volumes"),
    ("restarts-alone", changed(job_set(), f"{C}.command", ["python", "train.py"]),
     f"{JOB_SET_POD}.restartPolicy", "OnFailure", f"{JOB_SET_POD}.restartPolicy"),
    ("endless-restarts", job_set(), "spec.failurePolicy.maxRestarts", 100000,
     "spec.failurePolicy.maxRestarts"),
    ("endless-restarts", job(), "spec.backoffLimit", 2147483647, "spec.backoffLimit"),
    ("no-restart", job_set(), "spec.failurePolicy", ..., "spec.failurePolicy.maxRestarts"),
    ("collective-timeouts", two_templates(), f"{SECOND}.env[0].value", "60", f"{SECOND}.env[0]"),
    ("collective-timeouts", two_templates(), f"{SECOND}.env", [], f"{C}.env[0]"),
    ("processes-exceed-gpus", job_set(), f"{C}.resources", {"limits": {GPU: 4}}, f"{C}.command"),
    ("termination-grace", job_set(), f"{JOB_SET_POD}.terminationGracePeriodSeconds", 0,
     f"{JOB_SET_POD}.terminationGracePeriodSeconds"),
    ("gpu-not-asked", job_set(), f"{C}.resources", {}, f"{C}.resources.limits"),
    ("unknown-job", job_set(), "spec.successPolicy",
     {"operator": "All", "targetReplicatedJobs": ["worker"]},
     "spec.successPolicy.targetReplicatedJobs[0]"),
    ("pod-name-length", job_set(), "metadata.name", "a" * 60, "metadata.name"),
]  # fmt: skip


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize(("rule", "sound", "path", "value", "field"), PLANTED)
def test_a_planted_defect_is_found_where_it_is_and_not_before(rule, sound, path, value, field):
    assert rule not in {name for _, name in named(sound)}
    broken = changed(sound, path, value)
    assert verdict(broken).accepted, verdict(broken).problems
    assert (field, rule) in named(broken)
    assert verdict(broken).runs == (
        stricter_rules()[rule].severity == "warning" and _no_error(broken)
    )


def _no_error(manifest):
    return all(p.severity == "warning" for p in verdict(manifest).problems)


def test_every_rule_has_a_planted_defect():
    assert {case[0] for case in PLANTED} == set(stricter_rules())


def test_every_problem_comes_with_a_cure():
    for _, sound, path, value, _ in PLANTED:
        assert all(p.cure and p.message for p in verdict(changed(sound, path, value)).problems)


@pytest.mark.parametrize("make", [job, job_set, volcano_job, ray_cluster])
def test_sound_jobs_are_left_alone(make):
    assert verdict(make()).problems == ()


def test_a_volume_that_the_job_set_claims_is_not_missing():
    claims = {
        "templates": [
            {
                "metadata": {"name": "checkpoints"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Ti"}},
                },
            },
        ],
    }
    manifest = changed(job_set(), "spec.volumeClaimPolicies", [claims])
    assert named(changed(manifest, f"{JOB_SET_POD}.volumes", pod_spec()["volumes"][:1])) == set()


def test_a_patch_over_a_runtime_is_not_judged_as_a_pod():
    patch = {
        "manager": "example.com/me",
        "trainingRuntimeSpec": {
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "spec": {
                                    "template": {
                                        "spec": {
                                            "containers": [
                                                {
                                                    "name": "node",
                                                    "volumeMounts": container()["volumeMounts"],
                                                },
                                            ],
                                        },
                                    },
                                },
                            },
                        },
                    ],
                },
            },
        },
    }
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "gpt"},
        "spec": {"runtimeRef": {"name": "torch"}, "runtimePatches": [patch]},
    }
    assert named(train_job) == set()


def test_a_train_job_and_its_runtime_are_seen_together():
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "gpt"},
        "spec": {
            "runtimeRef": {"name": "torch"},
            "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {GPU: 8}}},
        },
    }
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {
            "podGroupPolicy": {"coscheduling": {}},
            "template": {"spec": {"replicatedJobs": job_set()["spec"]["replicatedJobs"]}},
        },
    }
    assert ("metadata.labels", "no-gang") in named(train_job)
    both = check_manifests([Document("a", train_job), Document("b", runtime)])
    assert [v.problems for v in both] == [(), ()]
    other = changed(runtime, "metadata.name", "other")
    both = check_manifests([Document("a", train_job), Document("b", other)])
    assert [p.rule for p in both[0].problems] == ["no-gang"]


WEIRD = [None, "", 0, -1, 1.5, 3.0, True, [], {}, [None], [[]], [{}], {"a": None}, "x", 2**70]


def _paths(value, path=()):
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else pairs:
        yield from _paths(item, (*path, key))


@given(st.data())
def test_no_value_anywhere_breaks_the_checker(data):
    manifest = data.draw(st.sampled_from([job, job_set, volcano_job, ray_cluster]))()
    path = data.draw(st.sampled_from(list(_paths(manifest))))
    at = manifest
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = data.draw(st.sampled_from(WEIRD))
    found = verdict(manifest)
    assert found.runs == all(p.severity == "warning" for p in found.problems)


def test_checking_needs_no_torch():
    code = "import sys, ridgeline.launch.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
