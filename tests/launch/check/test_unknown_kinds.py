"""Kinds without a schema: the pods inside are judged, and a user's own definition is a schema."""

from __future__ import annotations

import pytest
import yaml
from tests.launch.check.manifests import changed, container, job, pod_spec

from ridgeline.cli.main import run

GPU = "nvidia.com/gpu"
WORKER = "spec.mpiReplicaSpecs.Worker.template.spec"


def mpi_job():
    """A job of the MPI operator, of whose kind there is no schema here."""
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "allreduce", "labels": {"kueue.x-k8s.io/queue-name": "research"}},
        "spec": {
            "slotsPerWorker": 8,
            "mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": pod_spec()}}},
        },
    }


def definition():
    """The definition of a team's own kind, as `kubectl get crd -o yaml` prints it."""
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["gpus"],
                "properties": {
                    "gpus": {"type": "integer", "maximum": 8},
                    "note": {"type": "string"},
                },
                "x-kubernetes-validations": [{"rule": "url(self.note).isOurs()"}],
            }
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "trials.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Trial", "plural": "trials"},
            "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}],
        },
    }


def trial(**spec):
    return {
        "apiVersion": "example.com/v1",
        "kind": "Trial",
        "metadata": {"name": "a"},
        "spec": spec,
    }


@pytest.fixture
def check(tmp_path, capsys):
    """Give some objects to the command; returns its exit code and what it said, on one line."""

    def checked(*objects, text=None):
        path = tmp_path / "objects.yaml"
        path.write_text(text or yaml.safe_dump_all(objects))
        code = run(["launch", "--check", str(path)])
        seen = capsys.readouterr()
        return code, " ".join((seen.out + seen.err).split())

    return checked


def test_pods_of_a_sound_job_of_an_unknown_kind_are_fine(check):
    code, said = check(mpi_job())
    assert code == 0
    assert "unknown kind; its pods are fine" in said
    assert "1 of unknown kinds, of 1 the pods alone were checked" in said


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("containers[0].resources.limits", {GPU: "4"}, "asks for 8 but its limit is 4"),
        ("containers[0].volumeMounts[0].name", "lost", "the pod has no such volume"),
        ("containers[0].imagePullPolcy", "Always", "did you mean imagePullPolicy?"),
        ("containers[0].resources.limits", {GPU: "${GPUS}"}, "fill in the placeholder: envsubst"),
        ("nodeSelector", {"gpus": 8}, "a string, in quotes"),
    ],
)
def test_a_defect_of_pods_of_an_unknown_kind_is_found(check, field, value, words):
    code, said = check(changed(mpi_job(), f"{WORKER}.{field}", value))
    assert code == 3
    assert f"{WORKER}.{field.partition('[')[0]}" in said
    assert words in said
    assert "1 would never start" in said


def test_metadata_of_an_unknown_kind_that_is_no_map_is_rejected(check):
    code, said = check(changed(mpi_job(), "metadata", "allreduce"))
    assert code == 3
    assert "expected a map of fields" in said
    assert "1 would be rejected" in said


def test_fields_that_a_kind_lays_into_its_pods_are_no_defect(check):
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "llama"},
        "spec": {"predictor": {"minReplicas": 1, "containers": [container() | {"name": "main"}]}},
    }
    service["spec"]["predictor"]["volumes"] = pod_spec()["volumes"]
    code, said = check(service)
    assert code == 0
    assert "its pods are fine" in said


@pytest.mark.parametrize("kind", ["MPIJob", "PyTorchJob", "JAXJob", "TFJob"])
def test_workers_of_kubeflows_jobs_without_a_gang_are_warned_of(check, kind):
    alone = changed(mpi_job() | {"kind": kind}, "metadata.labels", {})
    assert "no-gang" in check(alone)[1]
    policy = changed(alone, "spec.runPolicy", {"schedulingPolicy": {"minAvailable": 2}})
    assert "no-gang" not in check(policy)[1]


def test_a_launcher_of_mpi_needs_no_gpu_for_the_variables_that_it_hands_on(check):
    env = [{"name": "NCCL_DEBUG", "value": "INFO"}]
    launcher = {"name": "main", "image": "job", "env": env, "command": ["mpirun", "train.py"]}
    replicas = {"replicas": 1, "template": {"spec": {"containers": [launcher]}}}
    launched = changed(mpi_job(), "spec.mpiReplicaSpecs.Launcher", replicas)
    assert "gpu-not-asked" not in check(launched)[1]
    launcher["command"] = ["python", "train.py"]
    assert "gpu-not-asked" in check(launched)[1]


def test_a_given_definition_judges_its_kind_and_gets_no_verdict(check):
    code, said = check(definition(), trial(gpus=9), trial(gpus=1, nite="x"), trial(gpus=2))
    assert code == 3
    assert "must be less than or equal to 8" in said
    assert "did you mean note?" in said
    assert "3 checked: 2 would be rejected" in said


def test_a_version_that_a_given_definition_does_not_serve_is_rejected(check):
    """Whether it lists the version as not served, or not at all."""
    old = changed(definition(), "spec.versions[0].served", False)
    old["spec"]["versions"].append({**old["spec"]["versions"][0], "name": "v2", "served": True})
    code, said = check(old, trial(gpus=2), {**trial(gpus=2), "apiVersion": "example.com/v2"})
    assert code == 3
    assert "the cluster's definition of Trial does not serve example.com/v1" in said
    assert "write it as example.com/v2" in said
    assert "2 checked: 1 would be rejected" in said
    code, said = check(definition(), {**trial(gpus=2), "apiVersion": "example.com/v1alpha1"})
    assert (code, "write it as example.com/v1" in said) == (3, True)


def test_a_rule_of_a_given_definition_that_is_not_understood_is_said(check):
    code, said = check(definition(), trial(gpus=2))
    assert code == 0
    assert "was not held against its rule 'url(self.note).isOurs()'" in said


def test_definitions_alone_are_no_question(check):
    code, said = check(definition())
    assert code == 2
    assert "holds definitions of kinds alone" in said


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("spec", {"group": "example.com"}, "missing required field `names` - at `$.spec`"),
        ("spec", None, "Expected `object`, got `null` - at `$.spec`"),
        ("spec.versions[0].schema.openAPIV3Schema", "any", "Expected `object`, got `str`"),
        (
            "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.gpus",
            {"type": "int"},
            "Invalid enum value 'int'",
        ),
        (
            "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.gpus",
            {"type": "array", "x-kubernetes-list-type": "map"},
            "a list of the type map without x-kubernetes-list-map-keys",
        ),
    ],
)
def test_a_broken_definition_is_one_line(check, field, value, words):
    code, said = check(changed(definition(), field, value), trial(gpus=1))
    assert code == 2
    assert "objects.yaml:1: no definition of a kind: " in said
    assert words in said
    assert "kubectl get crd NAME -o yaml" in said


def test_another_version_of_a_known_kind_is_named(check):
    code, said = check({"apiVersion": "ray.io/v1alpha1", "kind": "RayCluster"})
    assert code == 2
    assert "write it as ray.io/v1" in said


def test_a_chart_template_is_sent_to_helm(check):
    code, said = check(text="apiVersion: v1\nkind: Pod\nmetadata: {name: {{ .Values.name }}}\n")
    assert code == 2
    assert "helm template CHART | ridgeline launch --check -" in said


def test_an_overlay_is_sent_to_kustomize(check):
    code, said = check({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"})
    assert code == 2
    assert "kubectl kustomize FOLDER" in said


def test_a_placeholder_in_a_name_says_how_to_fill_it_in(check):
    code, said = check(changed(job(), "metadata.name", "<YOUR-NAME>"))
    assert code == 3
    assert "fill in the placeholder" in said
    assert "envsubst" not in said, "that fills in $NAME alone"
