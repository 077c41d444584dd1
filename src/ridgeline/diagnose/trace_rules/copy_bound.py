"""Copies to and from the host, or other GPUs, with no kernel beside them."""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("copy-bound",)
LEADS_FROM = 0.10
LEADS_BY = "worth"
_LEAST_SHARE = 0.05


def _copy_us(fact: RankFacts) -> float:
    return fact.link_us + fact.idle["copy"]


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
            "host inside of one" + (f", mostly {names[0]}." if names else "."),
            evidence={
                "copy_exposed_us": reading.mean(_copy_us),
                "copy_us": reading.mean(lambda fact: fact.summary.copy_us),
                "pageable_us": pageable,
            },
            where=names[:3],
            cure="Pin the host's memory and copy on a stream of its own a batch ahead "
            "(pin_memory=True, non_blocking=True)."
            if pageable > 0
            else "Avoid or overlap them: views instead of copies, a stream of their own for "
            "transfers, tensors created where they are used.",
        )
    ]
