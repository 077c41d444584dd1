"""Threads of the ranks on one machine: as many as there are cores, asleep where none is free."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.hardware.core_pressure import sleeping_threads
from ridgeline.hardware.machine import this_machine


def thread_variables(num_ranks: int, given: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables that ranks get for their threads, and what there is to tell.

    Args:
        num_ranks: Ranks on this machine, which share its cores.
        given: The environment so far, of which nothing is changed.
    """
    cores = this_machine(gpus=[]).cpu.num_usable_cores
    threads = {"OMP_NUM_THREADS": given.get("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))}
    waiting, told = sleeping_threads({**given, **threads})
    return threads | waiting, told
