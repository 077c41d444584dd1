"""A measured step for the roofline: what each operator attained, from a profile that was written.

Profiles are those of `ridgeline doctor` (with --json or --out) and the ones inside the ledger of
`ridgeline tune`, whose fastest proved stack is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_json
from ridgeline.records.profile import Operator, StepProfile
from ridgeline.records.roofline import AttainedOperator, AttainedStep

CURE = "give what ridgeline doctor wrote with --out or --json, or the ledger of ridgeline tune"
PLACES = ("profile", "tuned", "baseline")
"""Keys under which other records hold a profile, the first of them that is there."""
TINY, HUGE = 1e-12, 1e24
"""Between these any time, amount of work or traffic of a real step lies."""


def read_attained(path: Path) -> AttainedStep:
    """The operators of the profile in a file, with what they attained.

    Raises:
        InputError: It holds no profile, or one in which no operator was timed.
    """
    content: Any = read_json(path, object, option="--measured", cure=CURE)
    held = _profile_in(content)
    if held is None:
        raise InputError(f"--measured {path}: holds no profile; {CURE}")
    try:
        profile = msgspec.convert(held, type=StepProfile, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(f"--measured {path}: {in_words(error)}; {CURE}") from None
    timed = [one for one in profile.operators if _is_timed(one)]
    if not timed:
        raise InputError(
            f"--measured {path}: no operator that computes was timed; measure more steps with"
            " ridgeline doctor"
        )
    total = sum(one.seconds for one in timed)
    return AttainedStep(
        file=path.name,
        device=profile.environment.device,
        step_seconds=profile.step_seconds.p50,
        limit_fraction=profile.limit_fraction,
        operators=[_attained(one, total) for one in sorted(timed, key=lambda one: -one.seconds)],
    )


def _profile_in(content: Any) -> dict[str, Any] | None:
    """The profile that a record is or has; a profile knows its kind by its operators."""
    if not isinstance(content, dict):
        return None
    if "operators" in content and "step_seconds" in content:
        return content
    held = [content[key] for key in PLACES if isinstance(content.get(key), dict)]
    return held[0] if held else None


def _is_timed(one: Operator) -> bool:
    return all(TINY < amount < HUGE for amount in (one.flops, one.bytes, one.seconds))


def _attained(one: Operator, total_seconds: float) -> AttainedOperator:
    return AttainedOperator(
        name=one.name,
        shapes=one.shapes,
        dtype=one.dtype,
        phase=one.phase,
        calls=one.calls,
        seconds=one.seconds,
        share=one.seconds / total_seconds,
        intensity_flops_per_byte=one.flops / one.bytes,
        attained_flops_per_second=one.flops / one.seconds,
        limit_share=one.limit_seconds / one.seconds,
        bound=one.bound,
    )
