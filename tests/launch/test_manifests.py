"""Manifests of random recipes on random clusters, against the schemas and our own check."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.launch.check import check_manifests, read_text
from ridgeline.launch.cluster_file import (
    ClusterFile,
    Kubernetes,
    NodeSection,
    RunSection,
    Toleration,
)
from ridgeline.launch.job import LaunchJob, checked_name, job_of, run_name
from ridgeline.launch.kube.manifest import QUEUE_LABEL, as_yaml, manifests
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipeRun,
)
from ridgeline.records.recipe_file import recipe_toml

WORKER = ("-m", "ridgeline.train.worker")
RFC1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

names = st.text(min_size=1, max_size=80).map(run_name)
words = st.sampled_from(["", "gpu-high", "research"])
topologies = st.sampled_from(["", "cloud.provider.com/topology-rack", "kubernetes.io/hostname"])
recipes = st.builds(
    lambda dp, tp, per_rank, text, steps: Recipe(
        model=RecipeModel(config="llama-3-8b"),
        data=RecipeData(path=text, seq=2048),
        layout=Layout(dp=dp, tp=tp, global_batch=dp * per_rank),
        optimizer=RecipeOptimizer(learning_rate=3e-4, final_learning_rate=3e-5),
        run=RecipeRun(steps=steps),
    ),
    dp=st.sampled_from([1, 2, 4, 8, 16, 64]),
    tp=st.sampled_from([1, 2, 8]),
    per_rank=st.integers(1, 4),
    text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30),
    steps=st.integers(1, 10**6),
)
clusters = st.builds(
    ClusterFile,
    nodes=st.builds(
        NodeSection,
        devices=st.sampled_from([0, 1, 2, 4, 8]),
        cpus=st.integers(1, 256),
        memory_bytes=st.integers(10**9, 2 * 10**12),
        shared_memory_bytes=st.integers(2**26, 2**37),
    ),
    run=st.builds(
        RunSection,
        restarts=st.integers(0, 100),
        grace_seconds=st.integers(1, 900),
        min_nodes=st.integers(0, 4),
        port=st.integers(1024, 65535),
    ),
    environment=st.dictionaries(
        st.sampled_from(["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "NCCL_DEBUG"]),
        st.sampled_from(["mlx5", "eth0", "=mlx5_0:1", "2", 'it\'s "so"']),
    ),
    kubernetes=st.builds(
        Kubernetes,
        image=st.just("ghcr.io/example/train:1.0"),
        claim=st.just("checkpoints"),
        queue=st.just("research"),
        namespace=st.sampled_from(["default", "team-a"]),
        kind=st.sampled_from(["jobset", "trainjob"]),
        gang=st.sampled_from(["kueue", "pod-group"]),
        topology=topologies,
        topology_mode=st.sampled_from(["required", "preferred"]),
        exclusive_topology=topologies,
        priority_class=words,
        service_account=words,
        pull_secrets=st.sampled_from([(), ("registry",)]),
        node_selector=st.sampled_from([{}, {"pool": "h100"}]),
        tolerations=st.sampled_from([(), (Toleration(key="nvidia.com/gpu", effect="NoSchedule"),)]),
        host_network=st.booleans(),
        extra_resources=st.sampled_from([{}, {"rdma/ib": 1}]),
        keep_seconds=st.integers(0, 10**7),
    ),
)
engines = st.sampled_from(["kubernetes", "ray"])


def a_job(recipe: Recipe, cluster: ClusterFile, name: str) -> LaunchJob:
    folder = f"{cluster.kubernetes.mount}/runs/{name}"
    text = recipe_toml(recipe)
    return job_of(recipe, text, cluster, name=name, worker=WORKER, folder=folder)


def plain_job(**kubernetes: Any) -> LaunchJob:
    """Two nodes of eight GPUs."""
    recipe = Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(seq=128),
        layout=Layout(dp=16, global_batch=16),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
    )
    place = {"image": "train:1", "claim": "ckpt", "queue": "q"} | kubernetes
    nodes = NodeSection(devices=8, cpus=96, memory_bytes=2**40)
    return a_job(recipe, ClusterFile(nodes=nodes, kubernetes=Kubernetes(**place)), "gpt")


def pods_of(document: Any) -> list[dict[str, Any]]:
    """Every pod template inside a document, with the labels of its metadata."""
    if isinstance(document, list):
        return [pod for item in document for pod in pods_of(item)]
    if not isinstance(document, dict):
        return []
    if isinstance(document.get("spec"), dict) and "containers" in document["spec"]:
        return [document]
    return [pod for item in document.values() for pod in pods_of(item)]


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipes, clusters, names, engines)
def test_manifests_of_random_recipes_pass_the_check(
    recipe: Recipe, cluster: ClusterFile, name: str, engine: Any
) -> None:
    ranks, per_node = recipe.layout.num_devices, cluster.nodes.ranks_per_node
    assume(ranks < per_node or ranks % per_node == 0)
    job = a_job(recipe, cluster, name)
    documents = manifests(job, engine=engine)
    # Through the very text that `kubectl apply` would read.
    verdicts = check_manifests(read_text(as_yaml(documents), "dry-run"))
    assert len(verdicts) == len(documents)
    expected = set() if cluster.kubernetes.priority_class else {"priority-class"}
    if not cluster.nodes.devices:
        expected.add("gpu-not-asked")
    if not cluster.run.restarts:
        expected.add("no-restart")
    if documents[-1]["kind"] == "TrainJob":
        # The gang of a TrainJob and its runtime is told by the pair; the check sees one at a time.
        expected.add("no-gang")
    for verdict in verdicts:
        assert verdict.known
        assert verdict.runs, verdict
        assert {problem.rule for problem in verdict.problems} <= expected, verdict
    assert documents[0]["data"]["recipe.toml"] == recipe_toml(recipe)
    for pod in pods_of(documents):
        for container in pod["spec"]["containers"]:
            taken = container["resources"]
            assert taken["requests"] == taken["limits"]
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["shm"] == "/dev/shm"
            assert set(mounts) == {volume["name"] for volume in pod["spec"]["volumes"]}
        shm = next(one for one in pod["spec"]["volumes"] if one["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory"
        assert is_gang(pod, documents[-1])


def is_gang(pod: dict[str, Any], main: dict[str, Any]) -> bool:
    """Kueue places real pods (topology), or the scheduler's own PodGroup does."""
    annotations = pod["metadata"].get("annotations", {})
    queued = QUEUE_LABEL in main["metadata"]["labels"]
    by_kueue = queued and any("podset-" in key for key in annotations)
    return by_kueue or "schedulingGroup" in pod["spec"]


@given(st.text(max_size=300))
def test_every_text_becomes_a_name_that_engines_take(text: str) -> None:
    name = run_name(text)
    assert RFC1035.fullmatch(name)
    assert len(f"{name}-node-0-99999-abcde") <= 63
    assert run_name(name) == name
    assert checked_name(name) == name


def test_long_names_that_differ_at_their_end_stay_apart() -> None:
    assert run_name("a" * 60 + "1") != run_name("a" * 60 + "2")


def test_pods_find_each_other_by_the_names_that_jobset_gives() -> None:
    pod = pods_of(manifests(plain_job()))[0]
    line = pod["spec"]["containers"][0]["command"][-1]
    assert "--rdzv-endpoint gpt-node-0-0.gpt:29400" in line
    assert "--nnodes 2 " in line
    assert "--nproc-per-node 8" in line
    assert 'is_host=$([ "$JOB_COMPLETION_INDEX" = 0 ] && echo true || echo false)' in line
    assert "&& exec python -m torch.distributed.run" in line


def test_preemption_counts_for_nothing_and_a_failure_restarts_the_whole_set() -> None:
    spec = manifests(plain_job())[-1]["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert job["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    ]
    assert job["backoffLimit"] == 0
    assert spec["failurePolicy"]["maxRestarts"] == 3


def test_the_schedulers_own_gang_counts_every_pod() -> None:
    for engine, pods in (("kubernetes", 2), ("ray", 3)):
        documents = manifests(plain_job(gang="pod-group", queue=""), engine=engine)  # type: ignore[arg-type]
        group = next(one for one in documents if one["kind"] == "PodGroup")
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == pods


@pytest.mark.parametrize("key", ["image", "claim", "queue"])
def test_a_missing_key_is_named_with_its_file(key: str) -> None:
    with pytest.raises(InputError, match=rf"here\.toml lacks kubernetes\.{key}: "):
        manifests(plain_job(**{key: ""}), path=Path("here.toml"))


def test_ranks_that_do_not_fill_nodes_are_refused() -> None:
    job = plain_job()
    with pytest.raises(InputError, match="16 ranks, which do not fill nodes of 6"):
        a_job(job.recipe, ClusterFile(nodes=NodeSection(devices=6)), "gpt")
