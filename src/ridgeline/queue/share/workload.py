"""What is to be served: a model's memory and its load, measured or to be predicted."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from ridgeline.errors import InputError

Isolation = Literal["none", "memory", "hardware"]
ISOLATION: tuple[Isolation, ...] = ("none", "memory", "hardware")
"""From the weakest to the strongest."""
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")


class ServedWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model under one load. Either `gpu_share` with `memory_bytes`, or `model` with `rate`."""

    name: str
    """A name of lower-case letters, digits and dashes, which Kubernetes objects get."""
    gpu_share: float | None = None
    """How much of a GPU its whole load keeps busy: 0.3, or 1.7 where it needs two."""
    memory_bytes: float | None = None
    """GPU memory of one replica at its peak."""
    measured_on: str = ""
    """The device that `gpu_share` is of; may be left out where one device alone is asked for."""
    model: str = ""
    """A preset or a config.json, to have its load predicted."""
    rate: float | None = None
    """Requests that arrive per second."""
    prompt: int = 0
    """Tokens of a prompt, on average."""
    answer: int = 0
    """Tokens of an answer, on average."""
    weights: str = "bf16"
    engine: str = "python"
    ttft_seconds: float | None = None
    """The mean time to the first token may not be longer."""
    itl_seconds: float | None = None
    """The mean time between tokens may not be longer."""
    gpus: int = 1
    """GPUs of one replica (tensor parallel); several are always whole ones."""
    replicas: int = 1
    """The replicas that there are at least."""
    isolation: Isolation = "none"
    """The isolation that it needs: `memory` (nobody takes or reads its memory), `hardware` (nor
    brings it down by a fault)."""
    image: str = ""
    """Container image; with one, a Deployment is written."""

    @property
    def predicted(self) -> bool:
        """Whether its load is to be predicted."""
        return bool(self.model)


class WorkloadFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workloads of a TOML file."""

    workload: list[ServedWorkload]


def check_workload(one: ServedWorkload, where: str) -> None:
    """Refuse what cannot be.

    Raises:
        InputError: Which key, and what it may be.
    """
    if not _NAME.fullmatch(one.name):
        raise InputError(
            f"{where}: name {one.name!r}; use lower-case letters, digits and dashes, a letter"
            " first, 50 at most"
        )
    if one.predicted == (one.gpu_share is not None or one.memory_bytes is not None):
        raise InputError(
            f"{where}: give gpu_share and memory_bytes (measured), or model, rate, prompt, answer"
            " (predicted), one of the two"
        )
    needed = ("rate", "prompt", "answer") if one.predicted else ("gpu_share", "memory_bytes")
    for key in needed:
        value = getattr(one, key)
        if value is None or not 0.0 < value < math.inf:
            raise InputError(f"{where}: {key} is {_said(value)}; give a number above 0")
    for key in ("gpus", "replicas"):
        if not 1 <= getattr(one, key) <= 10_000:
            raise InputError(f"{where}: {key} is {getattr(one, key)}; give 1 to 10,000")
    for key in ("ttft_seconds", "itl_seconds"):
        value = getattr(one, key)
        if value is not None and not 0.0 < value < math.inf:
            raise InputError(f"{where}: {key} is {_said(value)}; give a number above 0")


def _said(value: float | None) -> str:
    return "not given" if value is None else f"{value:g}"
