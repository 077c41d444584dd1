"""Stages that wait for each other in a circle, and the full edge that has to give way.

Blocking edges can make one: a stage hands its output to two readers, one has no room, because it
waits for what the other makes of a later frame. Without a way out a pipeline would stand still for
good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ridgeline.frames.edges import Edge
from ridgeline.frames.joins import can_go_on, find_match
from ridgeline.frames.stage_state import StageState


def full_edge_of_circle(start: StageState, stages: Mapping[str, StageState]) -> Edge | None:
    """A full edge on a circle of waiting stages through this one; None: it waits in no circle."""
    seen: set[str] = set()

    def search(state: StageState, full: Edge | None) -> Edge | None:
        for name, edge in _waits_for(state):
            if name == start.name:
                return edge or full
            if name in stages and name not in seen:
                seen.add(name)
                if found := search(stages[name], edge or full):
                    return found
        return None

    return search(start, None)


def _waits_for(state: StageState) -> Iterator[tuple[str, Edge | None]]:
    """Sensors and stages without which a stage cannot go on, with the edge that is too full."""
    if state.job is not None or can_go_on(state):
        return
    if state.blocked:
        yield from ((edge.target, edge) for edge in state.outs if edge.pending)
        return
    match = find_match(state)
    if match is None:
        yield state.lead.source, None
        return
    for edge, token in zip(state.partners, match.partners, strict=True):
        if token is None:
            yield edge.source, None
