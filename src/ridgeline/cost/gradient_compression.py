"""Sending fewer gradient bytes: what each scheme sends, what encoding costs, when it loses.

    none       4 bytes per element, all-reduced
    fp16, bf16 2, all-reduced
    int8       1, and a scale of 4 bytes per group; sums overflow, so it is gathered from all ranks,
               or averaged in two steps: each rank gets a part of everyone's, averages it, encodes
               again and shares the result           Tang et al., 1905.05957
    sign       1/8, with scales and exchanges as int8       Karimireddy et al., 1901.09847
    top-k      a share k of the elements, 4 bytes of value and 4 of index each, gathered
                                                                Aji, Heafield, 1704.05021
    random-k   a share k, 4 bytes each; the same places on all ranks, so all-reduced
                                                                Stich et al., 1809.07599
    powersgd   rank · (rows + columns) values of each matrix, all-reduced
                                                                Vogels et al., 1905.13727, s. 3

What is gathered grows with the number of ranks, what is all-reduced does not. Encoding runs on the
compute units that the backward pass needs, so it is never hidden, while plain gradients travel
under that pass: on fast links compression mostly loses (Agarwal et al., 2103.00543).

Local SGD sends less often instead: every rank steps on its own, and only each H-th step weights are
averaged, so that step = compute + exposed synchronisation / H (Stich, 1805.09767; Lin et al.,
1808.07217, post-local SGD; with an outer optimizer DiLoCo, Douillard et al., 2311.08105, H = 500).
Time per step is all that is computed here: more local steps also make each step less worth, which
only a run shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ridgeline.cost.collective_volume import (
    Fabric,
    all_gather_bytes,
    all_reduce_bytes,
    all_reduce_seconds,
)

Scheme = Literal["none", "fp16", "bf16", "int8", "sign", "top-k", "random-k", "powersgd"]
FP32 = 4.0
PASSES = {
    "none": 0.0,
    "fp16": 3.0,
    "bf16": 3.0,
    "int8": 4.0,
    "sign": 4.0,
    "top-k": 8.0,
    "random-k": 5.0,
}
"""Reads and writes of the whole gradient, in units of its fp32 bytes, that encoding and decoding
take at the least: fp16 reads 4 and writes 2 bytes, and back; int8 reads twice for the scale;
sign the same; random-k adds to its error feedback, clears what it sends and writes the result;
top-k selects, gathers, keeps the rest as error feedback and scatters the result (a sort in place
of a selection would be several times dearer). PowerSGD's follow from its matmuls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """What a rank has to share."""

    matrices: tuple[tuple[int, int], ...]
    """Rows and columns of each."""
    other_elements: int = 0
    """Biases and norms, which stay uncompressed."""

    @property
    def num_elements(self) -> int:
        """Elements of all matrices, biases and norms."""
        return self.other_elements + sum(rows * columns for rows, columns in self.matrices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A scheme with its setting."""

    scheme: Scheme
    density: float = 0.01
    """Share of the elements that top-k keeps."""
    rank: int = 4
    group: int = 256
    """Elements that share a scale (int8, sign)."""
    two_step: bool = False
    """Average int8 or signs in two steps instead of gathering them from all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One exchange of gradients, seen from one rank."""

    sent_bytes: float
    encode_seconds: float
    """Time of encoding and decoding, by the memory traffic they cannot avoid."""
    travel_seconds: float

    def step_seconds(self, compute_seconds: float, hidden_seconds: float) -> float:
        """A step whose compute can hide `hidden_seconds` of travel."""
        exposed = max(0.0, self.travel_seconds - hidden_seconds)
        return compute_seconds + self.encode_seconds + exposed


def message_bytes(gradient: Gradient, compression: Compression) -> float:
    """One rank's encoded gradient.

    >>> square = Gradient(matrices=((1024, 1024),))
    >>> [message_bytes(square, Compression(scheme=one)) for one in ("none", "fp16", "powersgd")]
    [4194304.0, 2097152.0, 32768.0]
    """
    count = gradient.num_elements
    if compression.scheme == "none":
        return FP32 * count
    if compression.scheme in ("fp16", "bf16"):
        return 2.0 * count
    if compression.scheme in ("int8", "sign"):
        code = 1.0 if compression.scheme == "int8" else 1.0 / 8.0
        return count * (code + FP32 / compression.group)
    if compression.scheme == "random-k":
        return compression.density * count * FP32
    if compression.scheme == "top-k":
        return compression.density * count * 2.0 * FP32
    factors = sum(
        _rank(compression, rows, columns) * (rows + columns) for rows, columns in gradient.matrices
    )
    return FP32 * (factors + gradient.other_elements)


def exchange(
    gradient: Gradient,
    compression: Compression,
    num_ranks: int,
    fabric: Fabric,
    memory_bytes_per_second: float,
    *,
    encode_seconds: float | None = None,
) -> Exchange:
    """What one exchange sends and takes.

    `encode_seconds`, where it was measured, stands in place of the bound by memory traffic.

    >>> fabric = Fabric(
    ...     domain_size=1, domain_bytes_per_second=1e9, network_bytes_per_second=1e9
    ... )
    >>> layer = Gradient(matrices=((4096, 4096),) * 8)
    >>> plain = exchange(layer, Compression(scheme="none"), 16, fabric, 2e12)
    >>> small = exchange(layer, Compression(scheme="powersgd"), 16, fabric, 2e12)
    >>> plain.sent_bytes / small.sent_bytes
    512.0
    """
    message = message_bytes(gradient, compression)
    encode = _encoded_bytes(gradient, compression) / memory_bytes_per_second
    if encode_seconds is not None:
        encode = encode_seconds
    quantised = compression.scheme in ("int8", "sign")
    if compression.scheme == "top-k" or (quantised and not compression.two_step):
        sent = all_gather_bytes(num_ranks, num_ranks * message)
        # A gather of n messages sends half of what an all-reduce of n times the buffer would.
        travel = all_reduce_seconds(num_ranks, num_ranks * message, fabric) / 2.0
    else:
        sent = all_reduce_bytes(num_ranks, message)
        travel = all_reduce_seconds(num_ranks, message, fabric)
    return Exchange(sent_bytes=sent, encode_seconds=encode, travel_seconds=travel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestStep:
    """The best of several ways to share gradients."""

    scheme: Scheme
    step_seconds: float
    speedup: float
    """How many times as fast as a step that sends everything."""
    all_step_seconds: tuple[tuple[str, float], ...]
    """Every scheme that was compared, `none` first."""


def best_compression(
    gradient: Gradient,
    choices: Sequence[Compression],
    num_ranks: int,
    fabric: Fabric,
    *,
    memory_bytes_per_second: float,
    compute_seconds: float,
    hidden_seconds: float,
) -> ShortestStep:
    """The gradient compression with the shortest step, and its speed-up over sending everything.

    Steps alone are compared: whether the loss follows is for a run to show.
    """
    steps = [
        (
            one.scheme,
            exchange(gradient, one, num_ranks, fabric, memory_bytes_per_second).step_seconds(
                compute_seconds, hidden_seconds
            ),
        )
        for one in (Compression(scheme="none"), *choices)
    ]
    scheme, seconds = min(steps, key=lambda step: step[1])
    return ShortestStep(
        scheme=scheme,
        step_seconds=seconds,
        speedup=steps[0][1] / seconds,
        all_step_seconds=tuple(steps),
    )


def _rank(compression: Compression, rows: int, columns: int) -> int:
    return min(compression.rank, rows, columns)


def _encoded_bytes(gradient: Gradient, compression: Compression) -> float:
    """Memory traffic of encoding and decoding."""
    if compression.scheme != "powersgd":
        return PASSES[compression.scheme] * FP32 * gradient.num_elements
    # M Q and Mᵀ P read the matrix once each, its error feedback reads and writes it, the
    # reconstruction writes it.
    whole = sum(rows * columns for rows, columns in gradient.matrices)
    return 5.0 * FP32 * whole


def local_step_seconds(
    compute_seconds: float,
    sync_seconds: float,
    sync_every: int,
    *,
    hidden_seconds: float = 0.0,
) -> float:
    """Mean step when the weights are averaged every `sync_every` steps.

    `hidden_seconds` of each synchronisation run beside compute.

    >>> local_step_seconds(0.1, 0.4, 1), local_step_seconds(0.1, 0.4, 8)
    (0.5, 0.15000000000000002)
    """
    if sync_every < 1:
        raise ValueError(f"weights are averaged every 1 or more steps, not {sync_every}")
    return compute_seconds + max(0.0, sync_seconds - hidden_seconds) / sync_every


def local_sgd_speedup(
    compute_seconds: float,
    sync_seconds: float,
    sync_every: int,
    *,
    hidden_seconds_each_step: float = 0.0,
) -> float:
    """Steps per second over synchronising each step, whose all-reduce hides under the backward.

    >>> round(local_sgd_speedup(0.1, 0.4, 8, hidden_seconds_each_step=0.05), 2)
    3.0
    """
    each = compute_seconds + max(0.0, sync_seconds - hidden_seconds_each_step)
    return each / local_step_seconds(compute_seconds, sync_seconds, sync_every)


def sync_interval_for(
    efficiency: float, compute_seconds: float, sync_seconds: float, *, hidden_seconds: float = 0.0
) -> int:
    """The fewest steps between synchronisations that keep compute busy for this share of time.

    >>> sync_interval_for(0.95, 0.1, 0.4)
    76
    """
    if not 0.0 < efficiency < 1.0:
        raise ValueError(f"an efficiency lies between 0 and 1, not at {efficiency}")
    exposed = max(0.0, sync_seconds - hidden_seconds)
    allowed = compute_seconds * (1.0 - efficiency) / efficiency
    return max(1, math.ceil(round(exposed / allowed, 9)))
