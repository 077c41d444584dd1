"""Frames of several inputs, joined by the nearest stamp; frames without a partner, given up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.frames.copies import FrameCopies
from ridgeline.frames.edges import Edge, FrameSources, FrameToken
from ridgeline.frames.fates import Delay
from ridgeline.frames.stage_state import JobState, StageState


@dataclass(frozen=True, slots=True)
class Match:
    """What a stage's oldest leading frame finds on the other inputs."""

    lead: FrameToken
    partners: list[FrameToken | None]
    """One per other input; None: there is none near enough."""

    @property
    def tokens(self) -> list[FrameToken]:
        """All that was found, in the order of the inputs."""
        return [self.lead, *(token for token in self.partners if token is not None)]


def find_match(state: StageState) -> Match | None:
    """What the oldest leading frame finds; None: there is no leading frame.

    The nearest is that among those that are there: a join waits for a partner, not for a better
    one.
    """
    if not state.lead.queue:
        return None
    lead = state.lead.queue[0]
    return Match(lead, [edge.nearest(lead.stamp) for edge in state.partners])


def can_go_on(state: StageState) -> bool:
    """Whether the oldest leading frame has all its partners, or has lost one."""
    match = None if state.busy else find_match(state)
    return match is not None and (None not in match.partners or why_lost(state, match, False) != "")


def why_lost(state: StageState, match: Match, too_late: bool) -> str:
    """Why a leading frame that lacks a partner is dropped; empty: its partner may still come."""
    for token, edge in zip(match.partners, state.partners, strict=True):
        if token is None and edge.never(match.lead.stamp):
            return "no partner"
    return "too late" if too_late and state.shape.on_miss == "drop" else ""


def give_up_partners(state: StageState, copies: FrameCopies, now: float) -> None:
    """Drop what waits on a join's other inputs for leading frames that will not come."""
    for edge in state.partners:
        while edge.queue and _in_vain(state, edge):
            copies.lose_waiting(edge.queue.popleft(), edge, "no partner", now)


def _in_vain(state: StageState, edge: Edge) -> bool:
    """Whether the oldest that waits on one of the other inputs has missed all it could serve."""
    lead, stamp = state.lead, edge.queue[0].stamp
    if edge.reuse:
        return not lead.queue and lead.decided == math.inf
    if lead.queue:
        return lead.queue[0].stamp - stamp > edge.tolerance
    return lead.decided - stamp >= edge.tolerance


def take_inputs(
    state: StageState, tokens: list[FrameToken], copies: FrameCopies, number: int, now: float
) -> JobState:
    """Take a job's inputs off their edges; what is reused stays."""
    job = _joined(number, tokens, state.edges, now)
    for token, edge in zip(tokens, state.edges, strict=True):
        while edge.queue[0] is not token:
            reason = "superseded" if edge.reuse else "no partner"
            copies.lose_waiting(edge.queue.popleft(), edge, reason, now)
        if edge.reuse:
            copies.enter(edge, token)
        else:
            edge.queue.popleft()
    if len(tokens) > 1:
        copies.merge(tokens, state, job)
    return job


def take_single(state: StageState, number: int, now: float) -> JobState | None:
    """The next job of a stage with one input, whose frames are not used again; None: none yet."""
    if not state.lead.queue:
        return None
    token = state.lead.queue.popleft()
    delay, put = token.delay, token.put
    if now - put > delay.seconds:
        delay = Delay(state.lead.name, now - put, "waited")
    return JobState(
        number, (token.payload,), token.sources, token.stamp, token.oldest, delay, put, now
    )


def _joined(number: int, tokens: list[FrameToken], edges: list[Edge], now: float) -> JobState:
    """A job; the delay so far is that of the input that came last, which the others waited for."""
    first = tokens[0]
    last, last_edge, ready, oldest = first, edges[0], first.put, first.oldest
    for token, edge in zip(tokens[1:], edges[1:], strict=True):
        ready = max(ready, token.put)
        if not edge.reuse:
            oldest = min(oldest, token.oldest)
            if token.put > last.put:
                last, last_edge = token, edge
    delay = last.delay
    if now - last.put > delay.seconds:
        delay = Delay(last_edge.name, now - last.put, "waited")
    return JobState(
        number=number,
        payloads=tuple([token.payload for token in tokens]),
        sources=first.sources if len(tokens) == 1 else _distinct(tokens),
        stamp=first.stamp,
        oldest=oldest,
        delay=delay,
        ready=ready,
        started=now,
    )


def _distinct(tokens: list[FrameToken]) -> FrameSources:
    return tuple({id(source[1]): source for token in tokens for source in token.sources}.values())
