"""Rules of the cluster's doctor, one file each, with a function `find`.

`-` in a cause's name is `_` in its file's. A rule returns at most one finding, which counts the
GPUs that the cause keeps from work; its `cured` says what the cure makes of the cluster, to be
played on, or why that cannot be told; `NOT_PLAYED` says why that can never be told.
"""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from ridgeline.queue.doctor.room import BeforeAndCured
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.records.queue_finding import QueueFinding

FindRule = Callable[[LiveCluster], QueueFinding | None]


def doctor_rules() -> dict[str, FindRule]:
    """Every rule by the name of its cause.

    >>> "no-gang" in doctor_rules()
    True
    """
    names = sorted(one.name for one in pkgutil.iter_modules(__path__))
    return {
        name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").find for name in names
    }


def in_words_of(scheduler: str, finding: QueueFinding) -> QueueFinding:
    """The finding with the cure that another scheduler than Kubernetes' has for it, if any."""
    told = _cures()[finding.cause].get(scheduler)
    if told is None:
        return finding
    first = finding.where[0].partition("/")[0] if finding.where else ""  # of a job: no node of it
    cure, setting = (told[key].replace("{first}", first) for key in ("cure", "setting"))
    return msgspec.structs.replace(finding, cure=cure, setting=setting.strip() + "\n")


def cured_by(finding: QueueFinding, state: LiveCluster) -> BeforeAndCured | str:
    """The cluster as it is and with a finding's cure, to be played on; or why it cannot be."""
    module = importlib.import_module(f"{__name__}.{finding.cause.replace('-', '_')}")
    if hasattr(module, "NOT_PLAYED"):
        reason: str = module.NOT_PLAYED
        return reason
    found: BeforeAndCured | str = module.cured(state, finding)
    return found


@cache
def _cures() -> dict[str, Any]:
    text = (files("ridgeline.queue.doctor") / "cures.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def found(
    cause: str,
    *,
    lost_gpus: float,
    counted: str,
    confidence: float,
    summary: str,
    evidence: dict[str, float | int | str],
    where: list[str],
    filled: dict[str, str] | None = None,
    way: str = "",
) -> QueueFinding:
    """A finding with its cure, in which `{words}` are filled.

    A cause that comes about in several ways has a cure for each `way` of its own.
    """
    told = _cures()[cause][way] if way else _cures()[cause]
    cure, setting = told["cure"], told["setting"].strip() + "\n"
    for name, value in (filled or {}).items():
        cure, setting = (text.replace(f"{{{name}}}", value) for text in (cure, setting))
    return QueueFinding(
        cause=cause, lost_gpus=lost_gpus, counted=counted, confidence=confidence,
        summary=summary, evidence=evidence, where=where, cure=cure, setting=setting,
    )  # fmt: skip
