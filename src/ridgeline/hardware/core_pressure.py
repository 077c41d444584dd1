"""How much others want this machine's cores, and how threads of OpenMP then had better wait.

Between parallel operators the threads of libgomp, which is PyTorch's OpenMP on Linux, spin for the
next one. Where other processes want the cores, they spin in the time of those who would work: eight
steps of a model of a million weights took 18 CPU seconds beside other work, and 9 with threads that
sleep (`OMP_WAIT_POLICY=passive`; two cores of an AMD EPYC, torch 2.13).
What is computed is the same to the bit; only a thread's wake-up takes longer. 16 requests of 64
tokens to a model of 113 M parameters got 251 tokens/s with threads that sleep and 145 with such
that spin beside one program that kept a core busy, 146 to 219 and 37 to 83 beside two, and 351 and
421 on the quiet machine: there they spin as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
"""The share of time in which a task waited for a core (Linux 4.20, `accounting/psi.rst`)."""
BUSY_SHARE = 0.25
"""From here on cores are said to be wanted by others."""
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which a user says how threads wait."""


def sleeping_threads(given: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables by which threads of a process sleep where others want its cores.

    Args:
        given: The environment so far, of which nothing is changed: whoever says there how threads
            wait, or asks for one thread, is left alone.

    Returns:
        The variables, none on a quiet machine, and what there is to tell of them.
    """
    busy = share_waited()
    alone = given.get("OMP_NUM_THREADS") == "1"
    if alone or busy < BUSY_SHARE or any(name in given for name in WAIT_VARIABLES):
        return {}, ""
    told = (
        f"others want this machine's cores ({busy:.0%} of the last 10 s somebody waited for one):"
        " threads sleep instead of spinning while they wait; started on a quiet machine they spin,"
        " which is quicker there; OMP_NUM_THREADS=1 leaves the others most"
    )
    return {"OMP_WAIT_POLICY": "passive"}, told


def share_waited(source: Path | None = None) -> float:
    """The share of the last 10 s in which a task waited for a core; 0 where nobody counts it.

    Args:
        source: A file as Linux has it; None: this machine's.
    """
    try:
        some, _, _all = (source or PRESSURE).read_text().partition("\n")
    except OSError:
        return 0.0  # no Linux, or one that does not count it
    averages = dict(word.partition("=")[::2] for word in some.split() if "=" in word)
    return float(averages.get("avg10", 0.0)) / 100.0


def is_wanted(source: Path | None = None) -> bool:
    """Do others want the cores; also where nobody counts who waits for one.

    Args:
        source: A file as Linux has it; None: this machine's.
    """
    return not (source or PRESSURE).exists() or share_waited(source) >= BUSY_SHARE
