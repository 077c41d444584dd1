"""The step waits for its next batch, or for workers that are started anew.

How much of the waiting can be hidden depends on what making a batch costs. Where it waits for
storage, workers hide it whole. Where it computes, workers need cores: beside a GPU they have them,
but on a CPU they take them from the training itself, so that only work, not time, is shared out. No
number of workers reads faster than the disk: what a batch fetches from it, at the rate that
`ridgeline hardware --probe` measured, is the least that a step takes.
"""

from __future__ import annotations

import math

from ridgeline.cost.data_loading import loading_forecast
from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding, LoaderFacts

CAUSES = ("input-starved", "worker-restarts")

_MOST_WORKERS = 8
_LESS_FROM_DISK = (
    "Read less from this disk: store samples smaller (resized, compressed), keep what fits in "
    "memory, or put the files on a faster disk; more workers would wait for the same one."
)
_OVERHEAD = 1.1
"""Handing a batch over from a worker costs about this much more than making it."""


def find(reading: Reading) -> list[Finding]:
    """Find time in the data phase that a loader, or the start of its workers, explains."""
    return [*_starved(reading), *_restarts(reading)]


def _starved(reading: Reading) -> list[Finding]:
    """Time in the data phase, when a loader explains it."""
    loader = reading.loader
    waiting = reading.phase_seconds("data")
    if loader is None or waiting <= 0:
        return []
    # First batches of new iterators wait for workers to start, which is another cause.
    batches = max(1.0, reading.profile.settings.forwards_per_step)
    waiting = min(waiting, batches * loader.wait_seconds)
    fetch = loader.fetch_seconds if loader.fetch_seconds is not None else loader.wait_seconds
    making, computing = fetch * batches, (loader.fetch_cpu_seconds or 0.0) * batches
    rest = reading.step_seconds - waiting
    if loader.num_workers and making <= _OVERHEAD * rest / loader.num_workers:
        return _handing_over(reading, loader, waiting, making)
    workers = min(_MOST_WORKERS, max(1, reading.profile.settings.cpu_count))
    pessimist, optimist = _with_workers(reading, rest, making, computing, workers)
    disk = _disk_seconds(reading, loader) * batches
    pessimist, optimist = max(pessimist, disk), max(optimist, disk)
    slow_disk = disk > 0.8 * max(rest, making / workers)
    more = loader.num_workers < workers
    sleeping = making > 0 and computing < 0.5 * making
    return reading.finding(
        "input-starved",
        touched_seconds=waiting,
        saves_seconds=(
            0.8 * max(0.0, reading.step_seconds - pessimist) if more else 0.3 * waiting,
            waiting if not sleeping else max(0.0, reading.step_seconds - optimist),
        ),
        confidence=0.9 if loader.num_workers == 0 else 0.75,
        summary=f"The step waits {duration(waiting)} for its batch, "
        f"{percent(reading.share(waiting))} of its time; {_who_makes_it(loader)}."
        + (f" The disk alone needs {duration(disk)} for it." if slow_disk else ""),
        evidence=_evidence(loader, waiting) | ({"disk_seconds": disk} if disk else {}),
        where=[loader.site, *reading.hottest("data")],
        cure=_LESS_FROM_DISK
        if slow_disk
        else _cure(loader, more=more, sleeping=sleeping, on_gpu=reading.on_gpu),
        effort="line" if more and (sleeping or reading.on_gpu) else "code",
        technique=_technique(loader, more=more, waits=sleeping or reading.on_gpu),
    )


def _disk_seconds(reading: Reading, loader: LoaderFacts) -> float:
    """The least time in which the disk gives what a batch fetches from it; 0: not known."""
    if reading.storage is None or loader.fetch_disk_bytes <= 0:
        return 0.0
    forecast = loading_forecast(
        loader.fetch_disk_bytes, max(reading.storage.random_bytes_per_second, 1.0)
    )
    return forecast.disk_seconds


def _technique(loader: LoaderFacts, *, more: bool, waits: bool) -> str | None:
    """Workers where they find a core, samples kept where each costs the step its own time."""
    if more and waits:
        return "loader-workers"
    if loader.num_workers == 0 and loader.num_batches is not None:
        return "samples-in-memory"
    return "loader-workers" if more else None


def _with_workers(
    reading: Reading, rest: float, making: float, computing: float, workers: int
) -> tuple[float, float]:
    """Step time with workers, pessimistic and optimistic."""
    making *= _OVERHEAD
    hidden = max(rest, making / workers)
    if reading.on_gpu:
        return max(rest, 2 * making / workers), hidden
    cores = max(reading.profile.settings.cpu_count, 1)
    if cores == 1:
        return rest + computing, max(hidden, rest + computing)
    # The workers' arithmetic comes on top of the training's on the same cores.
    shared = rest + computing / cores
    return max(rest + 0.8 * computing, hidden), max(shared, hidden)


def _handing_over(
    reading: Reading, loader: LoaderFacts, waiting: float, making: float
) -> list[Finding]:
    """Workers make batches faster than they are used, and yet the step waits for them."""
    saved = waiting - making
    if saved <= 0:
        return []
    return reading.finding(
        "input-starved",
        touched_seconds=waiting,
        saves_seconds=(0.3 * saved, saved),
        confidence=0.65,
        summary=f"The step waits {duration(waiting)} for a batch that a worker makes in "
        f"{duration(making)}: handing it over costs more than making it.",
        evidence=_evidence(loader, waiting),
        where=[loader.site],
        cure="Make the batches in the training process (`num_workers=0`), or hand over fewer "
        "and larger tensors per batch.",
        effort="flag",
    )


def _who_makes_it(loader: LoaderFacts) -> str:
    if loader.num_workers == 0:
        return "the training process makes it itself"
    return f"{loader.num_workers} worker{'s' if loader.num_workers > 1 else ''} cannot keep up"


def _evidence(loader: LoaderFacts, waiting: float) -> dict[str, float | int | str]:
    evidence: dict[str, float | int | str] = {
        "waiting_seconds": waiting,
        "num_workers": loader.num_workers,
        "dataset": loader.dataset,
    }
    if loader.fetch_seconds is not None:
        evidence["making_a_batch_seconds"] = loader.fetch_seconds
    if loader.fetch_cpu_seconds is not None:
        evidence["making_a_batch_cpu_seconds"] = loader.fetch_cpu_seconds
    if loader.fetch_read_bytes > 0 or loader.fetch_disk_bytes > 0:
        evidence["read_bytes_per_batch"] = loader.fetch_read_bytes
        evidence["disk_bytes_per_batch"] = loader.fetch_disk_bytes
    if loader.prefetch_factor is not None:
        evidence["prefetch_factor"] = loader.prefetch_factor
    return evidence


def _cure(loader: LoaderFacts, *, more: bool, sleeping: bool, on_gpu: bool) -> str:
    cheaper = "do once what is done for every sample (parse, decode, resize), and keep the result"
    if more and (sleeping or on_gpu):
        return (
            f"Let workers make the batches: `num_workers={math.ceil((loader.num_workers or 1) * 2)}"
            "` and `persistent_workers=True`."
        )
    if more:
        return f"Make a batch cheaper: {cheaper}; or let workers make it where cores are free."
    return f"More workers would find no core: {cheaper}."


def _restarts(reading: Reading) -> list[Finding]:
    """New iterators over a loader whose workers do not persist."""
    found: list[Finding] = []
    for loader in reading.profile.loaders:
        if loader.num_workers == 0 or loader.persistent_workers or not loader.restarts:
            continue
        extra = max(0.0, loader.start_seconds - loader.wait_seconds)
        per_step = extra * loader.restarts / max(reading.profile.steps, 1)
        seconds = min(reading.of_mean(per_step), reading.phase_seconds("data"))
        # While processes start and end, the step that computes beside them is slower too.
        disturbed = max(0.0, reading.profile.step_seconds.mean - reading.step_seconds)
        found += reading.finding(
            "worker-restarts",
            touched_seconds=seconds,
            saves_seconds=(0.6 * seconds, seconds + disturbed),
            confidence=0.9,
            summary=f"Starting {loader.num_workers} workers for a new epoch takes "
            f"{duration(loader.start_seconds)}, {percent(reading.share(seconds))} of the time.",
            evidence={
                "start_seconds": loader.start_seconds,
                "num_restarts_seen": loader.restarts,
                "num_steps_seen": reading.profile.steps,
                "num_workers": loader.num_workers,
            },
            where=[loader.site],
            cure="Keep the workers from epoch to epoch: `persistent_workers=True`.",
            effort="flag",
            technique="persistent-workers",
        )
    return found
