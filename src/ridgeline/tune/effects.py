"""What the techniques of one side did to its script, and why they did nothing."""

from __future__ import annotations

from ridgeline.tune.pool import Live, Variant


def refusal(a: Variant, b: Variant, live: Live) -> str:
    """What the techniques that B adds say of why they changed nothing."""
    added = [t.technique for t in b.stack if t not in a.stack]
    waits = [live.preparing[name] for name in added if name in live.preparing]
    if waits:
        return f"it was still preparing when the time was up: {waits[0]}; give more with --budget"
    return "; ".join(live.refused[name] for name in added if name in live.refused)


def ended_early(live: Live) -> str:
    """Why a script that ended before it was timed was too short."""
    waits = next(iter(live.preparing.values()), "")
    steps = f"the script ended after {live.index} steps"
    return f"{steps}, when {waits}" if waits else f"{steps}, before one was timed"


def took_effect(a: Variant, b: Variant, applied: dict[str, str]) -> bool:
    """Did any technique that B adds change something, or does it add none?"""
    added = {t.technique for t in b.stack} - {t.technique for t in a.stack}
    return not added or any(name in applied for name in added)
