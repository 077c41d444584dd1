"""Channels of activations that are far larger than the others, which make them hard to round.

Dettmers et al., "LLM.int8()", arXiv 2208.07339, section 4; SmoothQuant, arXiv 2211.10438.

A scale for a whole token is set by its largest channel, so that the others keep few levels: with a
channel 50 times the median, an ordinary one has 127 / 50, less than three.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.compress.watching.seen import Seen

OUTLIER = 10.0
"""Times the median of a layer's channels, from which on a channel is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outliers:
    """Of the inputs of one layer."""

    channels: tuple[int, ...]
    """The outliers, the largest first."""
    ratios: tuple[float, ...]
    """Of each, its largest magnitude over the median channel's."""
    levels_left: float
    """Steps of int8 between 0 and the median channel's largest value, with a scale that all
    channels share (127 without any spread)."""


def outliers(seen: Seen, threshold: float = OUTLIER) -> Outliers:
    """Of a layer's inputs.

    Args:
        seen: With `max_abs`.
        threshold: See `OUTLIER`.
    """
    assert seen.max_abs is not None, "calibration was to gather max_abs"
    most = seen.max_abs.float()
    median = float(most.median().clamp(min=1e-12))
    order = most.argsort(descending=True, stable=True).tolist()
    ratios = (most / median).tolist()
    found = [channel for channel in order if ratios[channel] >= threshold]
    return Outliers(
        channels=tuple(found),
        ratios=tuple(ratios[channel] for channel in found),
        levels_left=127.0 * median / max(float(most.max()), median),
    )
