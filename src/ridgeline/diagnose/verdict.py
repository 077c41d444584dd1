"""What bounds the step, asked top down as one would ask for any machine.

1. Does it wait? For the next batch (or a request, with no core in use), for other ranks, for a
   synchronisation, or for Python to start the next operator. Where one of these takes a third of
   the step, the largest is the bound, for no faster arithmetic would help.
2. Is its memory full? Then memory decides the batch and the layout.
3. It works: are the operators that take most of the time limited by arithmetic or by moving
   bytes? Each operator's place on the roofline was decided when it was measured. Where none was
   looked at, as in a script of which one slow step was seen, nobody knows, and it is said so.

Where other programs hold the cores, a part of the step is their work. Which part is not known: it
may all have been where nothing ran, or all in the operators. A bound is named only where it is
the same either way.

The idea of the order is that of top-down analysis (Yasin, "A top-down method for performance
analysis and counters architecture", ISPASS 2014).
"""

from __future__ import annotations

from ridgeline.diagnose.reading import COMPUTE, Reading, total_seconds
from ridgeline.records import Verdict

WAITS = 1 / 3
"""Share of the step from which a wait is what bounds it."""
FULL = 0.92
"""Share of the device's memory from which it is full: allocators keep some for themselves."""
_LEAST_LEFT = 0.05
"""Share of the step that is the script's own, however long it waited."""


def verdict(reading: Reading) -> Verdict:
    """What bounds the step; exactly one holds."""
    waits, step = waiting_seconds(reading), reading.step_seconds
    named = _named(reading, waits, step)
    lost = lost_seconds(reading)
    if lost == 0.0:
        return named
    left = max(step - lost, _LEAST_LEFT * step)
    while_idle = {kind: max(0.0, seconds - lost) for kind, seconds in waits.items()}
    at_work = {kind: min(left, seconds) for kind, seconds in waits.items()}
    either_way = {_named(reading, found, left) for found in (while_idle, at_work)}
    return named if either_way == {named} else Verdict.UNDECIDED


def _named(reading: Reading, waits: dict[Verdict, float], step_seconds: float) -> Verdict:
    """The bound of a step of this length that waits for so long."""
    longest = max(waits, key=lambda kind: waits[kind])
    if step_seconds and waits[longest] >= WAITS * step_seconds:
        return longest
    if is_full(reading):
        return Verdict.MEMORY_CAPACITY_BOUND
    if not reading.operators():
        return Verdict.UNDECIDED
    compute = total_seconds(op for op in reading.operators() if op.bound == "compute")
    memory = total_seconds(op for op in reading.operators() if op.bound == "memory")
    if waits[longest] > max(compute, memory):
        return longest
    return Verdict.MEMORY_BOUND if memory > compute else Verdict.COMPUTE_BOUND


def lost_seconds(reading: Reading) -> float:
    """Seconds of a typical step for which other programs held the cores; 0 where they are few.

    Threads beyond the cores, which wait for each other, are the script's own.
    """
    profile = reading.profile
    own = profile.settings.num_threads > profile.settings.cpu_count > 0
    return 0.0 if own or not profile.is_crowded else profile.crowded_share * reading.step_seconds


def waiting_seconds(reading: Reading) -> dict[Verdict, float]:
    """Seconds of a typical step that pass without work on the device, by what is waited for."""
    synchronising = sync_seconds(reading)
    # Without operators every phase would look like Python, but for what is none of a model's.
    host = reading.phase_seconds("other")
    if reading.operators():
        small = total_seconds(reading.small_operators(*COMPUTE))
        around = reading.gap_seconds(*COMPUTE) + small - synchronising
        host = min(reading.step_seconds, max(0.0, around))
    asleep = reading.asleep_seconds
    return {
        Verdict.INPUT_BOUND: reading.phase_seconds("data", "copy") + asleep,
        Verdict.COMMUNICATION_BOUND: reading.phase_seconds("communication"),
        Verdict.SYNC_BOUND: synchronising,
        Verdict.HOST_BOUND: max(0.0, host - asleep),
    }


def sync_seconds(reading: Reading) -> float:
    """Time in which tensors are printed, or a GPU's values waited for.

    On a CPU whoever asks for a value has it already: what the question costs is the host's.
    """
    points = reading.profile.sync_points
    seconds = sum(point.seconds for point in points if point.kind == "print")
    if reading.on_gpu:
        lines = {point.site for point in points if point.calls >= 1}
        seconds = max(seconds, reading.step_seconds * reading.hot_share(lines))
    return min(reading.step_seconds, seconds)


def is_full(reading: Reading) -> bool:
    """Is the device's memory used up?"""
    memory = reading.profile.device_memory_bytes
    return memory > 0 and reading.profile.peak_memory_bytes >= FULL * memory
