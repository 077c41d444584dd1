"""A server's manifests: accepted by our check, and read back as the policy that they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.batching.scaling.hpa import Hpa
from ridgeline.batching.scaling.keda import Keda
from ridgeline.batching.scaling.policies import Observation
from ridgeline.batching.scaling.settings import Scaling
from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.launch.check import check_manifests, read_text
from ridgeline.launch.cluster_file import ClusterFile, Kubernetes, NodeSection
from ridgeline.launch.job import run_name
from ridgeline.launch.kube.manifest import as_yaml
from ridgeline.launch.kube.scaling_policy import policy_of_manifest, read_policy
from ridgeline.launch.kube.serving import ServerToDeploy, serving_manifests

CLUSTER = ClusterFile(
    nodes=NodeSection(devices=1, cpus=8, memory_bytes=64 * 2**30),
    kubernetes=Kubernetes(image="r:1", claim="models", prometheus="http://prometheus:9090"),
)


def documents(
    autoscaler: str, name: str = "llm", cluster: ClusterFile = CLUSTER, **scaling: Any
) -> list[dict[str, Any]]:
    server = ServerToDeploy(
        name=name,
        words=["serve", "/models/x y", "--max-sequences", "8"],
        cluster=cluster,
        replicas=2,
        scaling=Scaling(**scaling) if scaling else None,
        shutdown_seconds=45.0,
    )
    return serving_manifests(server, autoscaler)  # type: ignore[arg-type]


def judged(found: list[dict[str, Any]]) -> None:
    for verdict in check_manifests(read_text(as_yaml(found), "server.yaml")):
        assert verdict.runs, verdict


def seen(busy: int, replicas: int, usage: float = 0.0) -> Observation:
    return Observation(waiting=0, running=busy, kv_usage=usage, ready=replicas)


@settings(max_examples=25)
@given(
    name=st.text(min_size=1, max_size=80).map(run_name),
    autoscaler=st.sampled_from(["hpa", "keda"]),
    on=st.sampled_from(["queue", "kv"]),
    least=st.integers(1, 5),
    more=st.integers(1, 200),
    target=st.floats(0.001, 1.0),
    up=st.floats(0, 3600),
    down=st.floats(0, 3600),
)
def test_any_servers_manifests_are_accepted_and_read_back(
    name, autoscaler, on, least, more, target, up, down
) -> None:
    scaling = {
        "minimum": least,
        "maximum": least + more,
        "on": on,
        "open_per_replica": target * 100,
        "kv_target": target,
        "up_window_seconds": up,
        "down_window_seconds": down,
    }
    found = documents(autoscaler, name, **scaling)
    judged(found)
    policy = policy_of_manifest(found[-1])
    assert (policy.minimum, policy.maximum) == (least, least + more)
    metric = policy.metrics[0] if isinstance(policy, Hpa) else policy.triggers[0].metric
    assert abs(metric.target - target * 1000 * (100 if on == "queue" else 1)) <= 1
    assert policy.behaviour is not None
    assert policy.behaviour.up.window_seconds == round(up)
    assert policy.behaviour.down.window_seconds == round(down)


def test_a_fixed_number_of_servers_has_no_autoscaler() -> None:
    found = documents("hpa")
    judged(found)
    assert [one["kind"] for one in found] == ["Deployment", "Service"]
    assert found[0]["spec"]["replicas"] == 2


def test_no_request_is_lost_when_a_pod_goes() -> None:
    """First the Service forgets it, then it finishes what it has, then it is killed."""
    pod = documents("hpa")[0]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 15
    assert pod["terminationGracePeriodSeconds"] > 15 + 45
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["command"][2].startswith("exec ")
    assert shlex.split(container["command"][2])[4:8] == [
        "serve", "/models/x y", "--max-sequences", "8",
    ]  # fmt: skip


SERIES = [3, 30, 30, 30, 30, 30, 30, 2, 2, 2, 2, 2, 2, 2]
"""Open requests at each pass of 15 s."""
# Target 4 for each pod, 1 to 6 pods, down after 60 s; 100 % or 4 pods may be added within 15 s.
#   3 → ceil(3/4) = 1; 30 → ceil(30/4) = 8, at most 1 + 4 = 5, then at most 6.
#   2 → 1; the last answer of 8 was at 90 s and counts while it is younger than 60 s, that is until
#   135 s (pass 9). At 150 s it is 60 s old and no longer counts: down to 1 at once (100 %).
EXPECTED = [1, 5, 6, 6, 6, 6, 6, 6, 6, 6, 1, 1, 1, 1]


def test_the_exported_autoscaler_does_what_the_formula_says(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(
        as_yaml(documents("hpa", maximum=6, open_per_replica=4.0, down_window_seconds=60.0))
    )
    policy = read_policy(path)
    assert isinstance(policy, Hpa)
    replicas, got = 1, []
    for step, busy in enumerate(SERIES):
        replicas = policy.desired(seen(busy, replicas), 15.0 * step)
        got.append(replicas)
    assert got == EXPECTED


def test_the_exported_scaled_object_does_what_the_formula_says(tmp_path: Path) -> None:
    """KEDA makes the same autoscaler of it, over an External metric; it never goes below 1."""
    path = tmp_path / "server.yaml"
    path.write_text(
        as_yaml(documents("keda", maximum=6, open_per_replica=4.0, down_window_seconds=60.0))
    )
    policy = read_policy(path)
    assert isinstance(policy, Keda)
    assert policy.polling_seconds == 15
    replicas, got = 1, []
    for second in range(15 * len(SERIES)):
        replicas = policy.desired(seen(SERIES[second // 15], replicas), float(second))
        got.append(replicas)
    assert got[::15] == EXPECTED


def test_kv_use_is_followed_per_pod() -> None:
    """Mean 0.9 of a target of 0.6 at 2 pods: ceil(2 · 1.5) = 3; within a tenth: none."""
    for autoscaler in ("hpa", "keda"):
        found = documents(autoscaler, maximum=9, on="kv", kv_target=0.6)
        judged(found)
        assert policy_of_manifest(found[-1]).desired(seen(0, 2, 0.9), 0.0) == 3
        assert policy_of_manifest(found[-1]).desired(seen(0, 2, 0.65), 0.0) == 2
    query = documents("keda", maximum=9, on="kv")[-1]["spec"]["triggers"][0]["metadata"]["query"]
    assert query.startswith("sum(vllm:kv_cache_usage_perc{")


def test_what_a_manifest_leaves_out_is_what_the_server_fills_in() -> None:
    spec = {"maxReplicas": 9, "metrics": [_pods_metric("4")]}
    plain = policy_of_manifest({"kind": "HorizontalPodAutoscaler", "spec": spec})
    assert isinstance(plain, Hpa)
    assert (plain.minimum, plain.behaviour) == (1, None)
    partly = {**spec, "behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}
    policy = policy_of_manifest({"kind": "HorizontalPodAutoscaler", "spec": partly})
    assert policy.behaviour is not None
    assert policy.behaviour.down.select == "Disabled"
    assert policy.behaviour.down.window_seconds == 300
    assert [rate.value for rate in policy.behaviour.up.rates] == [4, 100]
    trigger = {
        "type": "prometheus",
        "name": "ridgeline_open_requests",
        "metadata": {"threshold": "5"},
    }
    keda = policy_of_manifest({"kind": "ScaledObject", "spec": {"triggers": [trigger]}})
    assert isinstance(keda, Keda)
    assert (keda.minimum, keda.maximum, keda.polling_seconds) == (0, 100, 30)
    assert (keda.cooldown_seconds, keda.idle, keda.behaviour) == (300, None, None)


def _pods_metric(target: str, name: str = "ridgeline_open_requests") -> dict[str, Any]:
    return {
        "type": "Pods",
        "pods": {
            "metric": {"name": name},
            "target": {"type": "AverageValue", "averageValue": target},
        },
    }


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            _pods_metric("4", "cpu_load"),
            "spec.metrics[0].pods.metric.name: 'cpu_load' is no metric",
        ),
        (_pods_metric("lots"), "spec.metrics[0].pods.target.averageValue: 'lots' is no quantity"),
        ({"type": "Resource", "resource": {}}, "spec.metrics[0].type: Resource is not read"),
    ],
)
def test_metrics_without_a_counterpart_are_refused(metric: dict[str, Any], message: str) -> None:
    spec = {"maxReplicas": 9, "metrics": [metric]}
    with pytest.raises(InputError, match=re.escape(message)):
        policy_of_manifest({"kind": "HorizontalPodAutoscaler", "spec": spec})


def test_what_kubernetes_cannot_follow_is_refused() -> None:
    with pytest.raises(InputError, match="use queue or kv"):
        documents("hpa", maximum=3, on="slo", ttft_seconds=1.0)
    with pytest.raises(InputError, match="shorten --scale-down-after"):
        documents("hpa", maximum=3, down_window_seconds=4000.0)
    bare = ClusterFile(nodes=CLUSTER.nodes, kubernetes=Kubernetes(image="r:1"))
    with pytest.raises(InputError, match=r"kubernetes\.prometheus"):
        documents("keda", cluster=bare, maximum=3)


def test_serve_prints_what_the_check_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        '[nodes]\ncpus = 4\nmemory_bytes = 8000000000\n[kubernetes]\nimage = "r:1"\n'
    )
    words = ["serve", "/models/llama", "--manifest", str(cluster), "--replicas", "1:4"]
    words += ["--kv-bytes", "2GiB", "--no-prefix-cache", "--speculative", "ngram", "--seed", "3"]
    assert run(words) == 0
    text = capsys.readouterr().out
    found = read_text(text, "stdout")
    assert all(verdict.runs for verdict in check_manifests(found))
    command = found[0].manifest["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert found[0].manifest["metadata"]["name"] == "llama"
    for flag in ("--kv-bytes 2147483648", "--no-prefix-cache", "--speculative ngram", "--seed 3"):
        assert flag in command
    assert "--replicas" not in command


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--manifest", "nowhere.toml"], "nowhere.toml: no such file"),
        (["--manifest", "x.toml", "--port", "1"], "--manifest has no --port"),
        (["--autoscaler", "keda"], "--autoscaler keda: it goes with --manifest"),
        (["--scale-on", "kv"], "--scale-on: nothing scales"),
        (["--scale-target", "3"], "--scale-target: nothing scales"),
        (["--replicas", "4:1"], "--replicas 4:1"),
        (["--replicas", "x"], "--replicas x"),
        (["--replicas", "1:2", "--scale-on", "cpu"], "'cpu' is not one of 'queue', 'kv', 'slo'"),
        (["--replicas", "1:2", "--scale-on", "slo"], "say what a miss is"),
        (["--replicas", "1:2", "--scale-on", "kv", "--scale-target", "2"], "--scale-target 2"),
        (["--replicas", "1:2", "--scale-down-after", "-1"], "--scale-down-after -1"),
    ],
)
def test_a_mistake_is_one_line(words, message, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "m", *words]) == 2
    assert message in capsys.readouterr().err
