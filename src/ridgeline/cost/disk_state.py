"""The least time of a step whose optimizer state lies on disk: bytes over bandwidth, both ways.

    seconds = bytes / read bandwidth + bytes / write bandwidth

ZeRO-Infinity (Rajbhandari et al., arXiv 2104.07857, sections 4.2 and 5.1.1) counts the state once
in and once out in each step, whatever the batch. One disk reads or writes at a time; the update of
one portion runs beside the traffic of the next, so a step takes the longer of the two.
"""

from __future__ import annotations

from typing import TypeVar

from ridgeline.cost.arrays import Floats

Amount = TypeVar("Amount", float, Floats)

PORTION_BYTES = 2**25
"""State that is moved together, of one parameter at least."""
WINDOWS = 2
"""Portions that are in memory at once."""


def disk_state_seconds(
    state_bytes: Amount, read_bytes_per_second: Amount, write_bytes_per_second: Amount
) -> Amount:
    """Seconds of one step's traffic.

    >>> disk_state_seconds(8e9, 4e9, 2e9)
    6.0
    """
    return state_bytes / read_bytes_per_second + state_bytes / write_bytes_per_second
