"""Reads a HorizontalPodAutoscaler or a KEDA ScaledObject back as the policy that it is.

So that what a manifest will do can be computed before it is applied: step the policy through a
series, or hand it to a simulation. Metrics are known by name, which is `SIGNALS` of
`batching/scaling/hpa.py`; a ScaledObject's trigger has it in `name`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.batching.scaling.hpa import SIGNALS, Hpa, Metric
from ridgeline.batching.scaling.hpa_behaviour import DOWN, UP, Behaviour, Rate, Rules
from ridgeline.batching.scaling.keda import (
    COOLDOWN_SECONDS,
    MOST,
    POLLING_SECONDS,
    Keda,
    Trigger,
)
from ridgeline.errors import InputError
from ridgeline.launch.check.documents import read_files
from ridgeline.records.kube_quantity import parse_quantity


def read_policy(path: Path) -> Hpa | Keda:
    """The policy of the one autoscaler in a file of manifests.

    Raises:
        InputError: There is none, several, or one that is not understood.
    """
    found = [
        document.manifest
        for document in read_files([path])
        if isinstance(document.manifest, Mapping)
        and document.manifest.get("kind") in ("HorizontalPodAutoscaler", "ScaledObject")
    ]
    if len(found) != 1:
        raise InputError(
            f"{path}: {len(found)} autoscalers in it; one HorizontalPodAutoscaler or ScaledObject"
            " is needed"
        )
    try:
        return policy_of_manifest(found[0])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError(
            f"{path}: no {found[0]['kind']} that can be read; `ridgeline launch --check {path}`"
            " says what it lacks"
        ) from None


def policy_of_manifest(manifest: Mapping[str, Any]) -> Hpa | Keda:
    """The policy of an object that `ridgeline launch --check` accepts.

    Raises:
        InputError: A metric that has no counterpart here.
    """
    spec = manifest["spec"]
    if manifest["kind"] == "ScaledObject":
        return _keda(spec)
    behaviour = _behaviour(spec["behavior"]) if spec.get("behavior") else None
    return Hpa(
        minimum=spec.get("minReplicas", 1),
        maximum=spec["maxReplicas"],
        metrics=tuple(
            _metric(one, f"spec.metrics[{index}]") for index, one in enumerate(spec["metrics"])
        ),
        behaviour=behaviour,
    )


def _keda(spec: Mapping[str, Any]) -> Keda:
    config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    return Keda(
        minimum=spec.get("minReplicaCount", 0),
        maximum=spec.get("maxReplicaCount", MOST),
        idle=spec.get("idleReplicaCount"),
        polling_seconds=spec.get("pollingInterval", POLLING_SECONDS),
        cooldown_seconds=spec.get("cooldownPeriod", COOLDOWN_SECONDS),
        first_cooldown_seconds=spec.get("initialCooldownPeriod", 0),
        behaviour=_behaviour(config["behavior"]) if config.get("behavior") else None,
        triggers=tuple(
            _trigger(one, f"spec.triggers[{index}]") for index, one in enumerate(spec["triggers"])
        ),
    )


def _trigger(trigger: Mapping[str, Any], path: str) -> Trigger:
    metadata = trigger["metadata"]
    kinds = {"AverageValue": "share", "Value": "value"}
    kind = trigger.get("metricType", "AverageValue")
    if trigger["type"] != "prometheus" or kind not in kinds:
        raise InputError(f"{path}: only prometheus triggers with Value or AverageValue are read")
    metric = Metric(
        signal=_signal(trigger.get("name", ""), f"{path}.name"),
        kind=kinds[kind],  # type: ignore[arg-type]
        target=_thousandths(metadata["threshold"], f"{path}.metadata.threshold"),
    )
    return Trigger(metric=metric, activation=float(metadata.get("activationThreshold", 0)))


def _metric(metric: Mapping[str, Any], path: str) -> Metric:
    kind = metric["type"]
    source = metric.get(kind[:1].lower() + kind[1:], {})
    if kind not in ("Pods", "External", "Object"):
        raise InputError(f"{path}.type: {kind} is not read; Pods, External and Object are")
    target = source["target"]
    if "averageValue" in target:
        name, shape = "averageValue", "average" if kind == "Pods" else "share"
    else:
        name, shape = "value", "value"
    return Metric(
        signal=_signal(source["metric"]["name"], f"{path}.{kind.lower()}.metric.name"),
        kind=shape,  # type: ignore[arg-type]
        target=_thousandths(target[name], f"{path}.{kind.lower()}.target.{name}"),
    )


def _behaviour(behaviour: Mapping[str, Any]) -> Behaviour:
    return Behaviour(
        up=_rules(behaviour.get("scaleUp") or {}, UP),
        down=_rules(behaviour.get("scaleDown") or {}, DOWN),
    )


def _rules(rules: Mapping[str, Any], default: Rules) -> Rules:
    rates = default.rates
    if rules.get("policies") is not None:
        rates = tuple(
            Rate(one["type"], one["value"], one["periodSeconds"]) for one in rules["policies"]
        )
    tolerance = rules.get("tolerance")
    return Rules(
        rates=rates,
        select=rules.get("selectPolicy", default.select),
        window_seconds=rules.get("stabilizationWindowSeconds", default.window_seconds),
        tolerance=None if tolerance is None else float(parse_quantity(tolerance) or 0),
    )


def _signal(name: str, path: str) -> str:
    if name not in SIGNALS:
        raise InputError(f"{path}: {name!r} is no metric of a server; known: {', '.join(SIGNALS)}")
    return name


def _thousandths(text: Any, path: str) -> int:
    """Round up to thousandths, as the server's `MilliValue` does."""
    quantity = parse_quantity(text)
    if not quantity or quantity < 0:
        raise InputError(f"{path}: {text!r} is no quantity above 0")
    return math.ceil(quantity * 1000)
