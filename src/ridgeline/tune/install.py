"""Inside the script's process: intercept it, then apply the session's stack."""

from __future__ import annotations

from ridgeline.measure.child.attach import attach
from ridgeline.techniques import technique


def install(session_folder: str) -> None:
    """Entry point that the bootstrap calls once torch is imported."""
    agent, session = attach(session_folder)
    stack = sorted(session.stack, key=lambda applied: technique(applied.technique).CARD.stage)
    for applied in stack:
        try:
            technique(applied.technique).apply(agent.points, applied.options)
        except Exception as error:
            agent.points.fails(applied.technique, error)
