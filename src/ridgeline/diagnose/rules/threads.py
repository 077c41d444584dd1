"""CPU threads that do not fit the cores: too few, too many, or spinning where others want them."""

from __future__ import annotations

from ridgeline.cost.amdahl import speedup
from ridgeline.diagnose.reading import COMPUTE, Reading, percent, total_seconds
from ridgeline.hardware.core_pressure import WAIT_VARIABLES
from ridgeline.records import Finding

CAUSES = ("few-threads", "many-threads", "crowded-threads")

_EFFICIENCY = (0.35, 0.95)
"""Share of the added threads that arrives: memory bandwidth is shared."""
_LEAST_BESIDE = 0.1
"""Share of a step: below, one thread does it alone."""


def find(reading: Reading) -> list[Finding]:
    """Threads of all ranks on this machine against its cores."""
    settings = reading.profile.settings
    if reading.on_gpu:
        return []
    if reading.profile.is_crowded and 1 < settings.num_threads <= settings.cpu_count:
        return _crowded(reading)
    if not reading.operators():
        return []
    cores = reading.ceilings.num_threads if reading.ceilings is not None else settings.cpu_count
    cores = min(cores, settings.cpu_count)
    threads = settings.num_threads * max(1, len(reading.ranks))
    if threads < cores:
        return _few(reading, threads, cores)
    if settings.num_threads > cores:
        return _many(reading, cores)
    return []


def _few(reading: Reading, threads: int, cores: int) -> list[Finding]:
    large = [op for op in reading.operators(phases=COMPUTE) if op.bound != "overhead"]
    seconds = total_seconds(large)
    more = cores / threads
    saved = [seconds * (1 - 1 / speedup(1.0, 1 + part * (more - 1))) for part in _EFFICIENCY]
    settings = reading.profile.settings
    return reading.finding(
        "few-threads",
        touched_seconds=seconds,
        saves_seconds=(saved[0], saved[1]),
        confidence=0.85,
        summary=f"Operators run on {settings.num_threads} thread"
        f"{'s' if settings.num_threads > 1 else ''} of {cores} cores; "
        f"{percent(reading.share(seconds))} of the step is in operators that share out.",
        evidence={
            "num_threads": settings.num_threads,
            "num_cores": cores,
            "num_ranks": len(reading.ranks),
            "parallel_seconds": seconds,
        },
        cure="Remove `torch.set_num_threads` or OMP_NUM_THREADS, or set them to the number of "
        "cores.",
        effort="flag",
        technique="thread-count",
    )


def _many(reading: Reading, cores: int) -> list[Finding]:
    settings = reading.profile.settings
    busy = reading.phase_seconds(*COMPUTE)
    waiting = min(busy, reading.of_mean(settings.cpu_wait_seconds))
    return reading.finding(
        "many-threads",
        touched_seconds=busy,
        saves_seconds=(0.3 * waiting, min(2.0 * waiting, 0.6 * busy)),
        confidence=0.75,
        summary=f"Operators run on {settings.num_threads} threads, and there are {cores} "
        "cores: threads wait for each other at the end of every operator.",
        evidence={
            "num_threads": settings.num_threads,
            "num_cores": cores,
            "waiting_for_a_core_seconds": settings.cpu_wait_seconds,
        },
        cure="Remove `torch.set_num_threads` or OMP_NUM_THREADS, or set them to the number of "
        "cores.",
        effort="flag",
        technique="thread-count",
    )


def _crowded(reading: Reading) -> list[Finding]:
    """Threads that wait for each other, while those who would work get no core."""
    profile, settings = reading.profile, reading.profile.settings
    if any(name in profile.environment.variables for name in WAIT_VARIABLES):
        return []
    if profile.beside_seconds < _LEAST_BESIDE * profile.step_seconds.mean:
        return []
    busy = reading.phase_seconds(*COMPUTE)
    waiting = min(busy, profile.crowded_share * reading.step_seconds)
    return reading.finding(
        "crowded-threads",
        touched_seconds=busy,
        saves_seconds=(0.3 * waiting, max(waiting, 0.9 * busy)),
        confidence=0.7,
        summary=f"Others want the cores, for {percent(profile.crowded_share)} of the step a thread "
        f"waited for one; and {settings.num_threads} threads share every operator, which spin "
        "while they wait for each other, in the time of those that would work.",
        evidence={
            "num_threads": settings.num_threads,
            "num_cores": settings.cpu_count,
            "waiting_for_a_core_seconds": settings.cpu_wait_seconds,
            "cpu_seconds": settings.cpu_seconds,
        },
        cure="While others run: `OMP_WAIT_POLICY=passive` in the environment lets waiting threads "
        "sleep (Intel's and LLVM's OpenMP: `KMP_BLOCKTIME=0`), OMP_NUM_THREADS=1 has none that "
        "wait. Where cores are free again, take it back: threads that spin are quicker there.",
        effort="flag",
        technique="passive-threads",
    )
