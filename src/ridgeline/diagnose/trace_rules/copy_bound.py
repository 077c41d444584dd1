"""Copies to and from the host, or other GPUs, with no kernel beside them."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.time.offload import Offload

CAUSES = ("copy-bound",)
LEADS_FROM = 0.10
LEADS_BY = "worth"
_LEAST_SHARE = 0.05


def _copy_us(fact: RankFacts) -> float:
    return fact.link_us + fact.idle["copy"]


def _offload_words(found: Offload) -> str:
    out, back = map(quantity.memory, (found.out_bytes_per_step, found.in_bytes_per_step))
    if found.way == "in":
        return f" This is offload: {back} of parameters are streamed in each step."
    return f" This is offload: {out} leave the GPU each step and {back} come in again."


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find copies that no kernel covers."""
    share = reading.share(_copy_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_copy_us)
    names = [name for name in worst.copies_us if name.startswith("Mem")]
    pageable = sum(us for name, us in worst.copies_us.items() if "Pageable" in name)
    return [
        reading.finding(
            "copy-bound",
            of=_copy_us,
            worth_us=reading.saved("copy"),
            confidence=0.8 if share >= LEADS_FROM else 0.65,
            summary=f"{percent(share)} of the window is copies with no kernel beside them, or the "
            "host inside of one"
            + (f", mostly {names[0]}." if names else ".")
            + (_offload_words(worst.offload) if worst.offload else ""),
            evidence={
                "copy_exposed_us": reading.mean(_copy_us),
                "copy_us": reading.mean(lambda fact: fact.summary.copy_us),
                "pageable_us": pageable,
                "offload_out_bytes_per_step": worst.offload.out_bytes_per_step
                if worst.offload
                else None,
                "offload_in_bytes_per_step": worst.offload.in_bytes_per_step
                if worst.offload
                else None,
            },
            where=names[:3],
            cure="Offload less: keep on the GPU what fits (activation checkpointing, a sharded "
            "optimizer), and bring the rest in from pinned memory a layer ahead, on a stream of "
            "its own."
            if worst.offload
            else "Pin the host's memory and copy on a stream of its own a batch ahead "
            "(pin_memory=True, non_blocking=True)."
            if pageable > 0
            else "Avoid or overlap them: views instead of copies, a stream of their own for "
            "transfers, tensors created where they are used.",
        )
    ]
