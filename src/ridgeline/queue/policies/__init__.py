"""Policies of a queue, one file each: who starts next, and who is interrupted for it.

A file holds a `CARD` and its class as `POLICY`. `-` in a policy's name is `_` in its file's. A
policy sees the state of the cluster, starts and interrupts jobs there, and prints or reads nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Protocol

from ridgeline.errors import InputError
from ridgeline.queue.machine import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCard:
    """What a policy is."""

    title: str
    interrupts: bool = False
    """Whether it takes GPUs from running jobs."""
    source: str = ""


class QueuePolicy(Protocol):
    """The rule by which jobs start; made with the state that it acts on."""

    def __init__(self, state: ClusterState) -> None: ...

    def arrive(self, job: int) -> None:
        """A job was submitted, or lost its node."""

    def finished(self, job: int) -> None:
        """A running job has ended, or lost its node, and its GPUs are free."""

    def changed(self, job: int) -> None:
        """The end of a running job has moved: it runs faster or slower than before."""

    def schedule(self) -> None:
        """Start whom the policy lets start now."""

    def next_moment(self) -> float:
        """When the policy wants to be asked again, though nothing happens."""


def policy_names() -> list[str]:
    """The names of all policies.

    >>> "easy" in policy_names()
    True
    """
    return sorted(one.name.replace("_", "-") for one in pkgutil.iter_modules(__path__))


def find_policy(name: str) -> tuple[PolicyCard, type[QueuePolicy]]:
    """The card and the class of a policy.

    Raises:
        InputError: There is none of that name; the known ones are listed.
    """
    if name not in policy_names():
        raise InputError(f"--policy {name}: known are {', '.join(policy_names())}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return module.CARD, module.POLICY
