"""Tokens that only fill rows up to the same length are computed like all others."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, percent
from ridgeline.records import Finding

CAUSES = ("padding",)

_SAVED = (0.5, 1.0)
"""Parts of the padding's share that are saved: sorting by length leaves some, attention gains more
than its share."""


def find(reading: Reading) -> list[Finding]:
    """Share of the token ids that is one value at the ends of rows."""
    settings = reading.profile.settings
    padding = max(
        [settings.padding_share, *(loader.padding_share for loader in reading.profile.loaders)]
    )
    if padding <= 0:
        return []
    seconds = padding * reading.phase_seconds("forward", "backward")
    loader = reading.loader
    model = reading.model
    return reading.finding(
        "padding",
        touched_seconds=seconds,
        saves_seconds=(_SAVED[0] * seconds, _SAVED[1] * seconds),
        confidence=0.75,
        summary=f"{percent(padding)} of the tokens are padding: one value repeated to the end "
        "of rows.",
        evidence={"padding_share": padding},
        where=[
            loader.site if loader is not None else None,
            model.forward_site if model is not None else None,
        ],
        cure="Pad each batch to its own longest row, sort by length, or pack several texts "
        "into a row.",
        effort="code",
        technique="length-buckets",
    )
