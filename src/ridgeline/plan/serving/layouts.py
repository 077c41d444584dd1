"""The layout of a served row: columns where there are any, else the words of its note.

Columns are `tp`, `attention_dp`, `ep`; a disaggregated row has `prefill_workers` and
`decode_workers` instead, each with `_tp`, `_dp`, `_ep` and `_batch` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.cost.serving.setting import ServingLayout
from ridgeline.errors import InputError
from ridgeline.plan.notes import ServedPool, ServingNote
from ridgeline.plan.table_cells import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLayout:
    """Workers of one kind, and what each is made of."""

    workers: int
    layout: ServingLayout
    most_sequences: float | None
    """Sequences of one group of devices at most."""

    @property
    def devices(self) -> int:
        """The devices of all workers."""
        return self.workers * self.layout.devices


def layout_of(cells: Mapping[str, str], note: ServingNote, devices: int) -> ServingLayout:
    """What the devices of one replica share.

    Raises:
        InputError: The columns contradict one another.
    """
    dp = whole(cells, "attention_dp") or note.attention_dp or 1
    tp = note.attention_tp or (whole(cells, "tp") or devices)
    if note.attention_tp is None and dp > 1 and tp % dp == 0 and "attention_dp" not in cells:
        tp //= dp  # the column counts all devices that share the experts
    return ServingLayout(tp=tp, attention_dp=dp, ep=whole(cells, "ep") or note.ep or 1)


def pools_of(cells: Mapping[str, str], note: ServingNote) -> tuple[PoolLayout, PoolLayout] | None:
    """The prefill and the decode pool; None: one engine does both.

    Raises:
        InputError: One of the two has no workers.
    """
    found = [_from_columns(cells, kind) for kind in ("prefill", "decode")]
    prefill, decode = (
        column or (_from_note(said) if said else None)
        for column, said in zip(found, (note.prefill, note.decode), strict=True)
    )
    if prefill is None and decode is None:
        if note.disaggregated:
            raise InputError("disaggregated, but its workers are not stated; see the columns")
        return None
    if prefill is None or decode is None:
        raise InputError("give prefill_workers and decode_workers, or neither")
    return prefill, decode


def _from_columns(cells: Mapping[str, str], kind: str) -> PoolLayout | None:
    workers = whole(cells, f"{kind}_workers")
    if workers is None:
        return None
    layout = ServingLayout(
        tp=whole(cells, f"{kind}_tp") or 1,
        attention_dp=whole(cells, f"{kind}_dp") or 1,
        ep=whole(cells, f"{kind}_ep") or 1,
    )
    return PoolLayout(workers=workers, layout=layout, most_sequences=whole(cells, f"{kind}_batch"))


def _from_note(said: ServedPool) -> PoolLayout:
    layout = ServingLayout(tp=said.tp, attention_dp=said.dp, ep=said.ep)
    return PoolLayout(workers=said.workers, layout=layout, most_sequences=said.batch)
