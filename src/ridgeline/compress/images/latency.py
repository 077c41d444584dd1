"""Channels pruned until a share of the FLOPs is gone, in the way that is fastest where it runs.

FLOPs are not time: widths that vector units and tensor cores do not divide, and layers that wait
for memory, keep theirs. So the same share of FLOPs is pruned in several ways (from each layer or
from all together, widths rounded to several multiples), all are timed in turns at batch 1 on this
machine, and the fastest is timed once more beside the model as given: the best of several noisy
ratios flatters, so it only chooses. Where what was chosen gains less than was asked for, it is
refused; where the ledger times its rows in processes of their own, what it shows decides.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from torch import Tensor, nn

from ridgeline.compress.images.measure import speedup, time_in_turns
from ridgeline.compress.pruning import weights
from ridgeline.compress.pruning.channels.choose import flops, going, magnitudes, weights_of, worth
from ridgeline.compress.pruning.channels.coupling import Coupling, coupling
from ridgeline.compress.pruning.channels.prune import LossOf, Smaller, cut, prune_channels
from ridgeline.errors import InputError
from ridgeline.records.compression import Speedup
from ridgeline.records.image_compression import ImageRow
from ridgeline.records.scheme import Pruning, Scheme

MULTIPLES = (8, 16, 32)
"""Channels that vector registers (AVX-512: 16 floats) and tensor cores (8 to 32) take at once."""
SCOPES: tuple[Literal["layer", "global"], ...] = ("layer", "global")
HALVINGS = 6
ROUND_SECONDS = 0.2
"""How long each candidate runs in a round, at least."""
NEAR = 0.05
"""FLOPs left may be off by so much of the whole; widths are whole multiples."""


def prune_for_latency(
    model: nn.Module,
    example: tuple[Tensor, ...],
    pruning: Pruning,
    *,
    faster: float | None,
    batches: Iterable[Any] = (),
    loss_of: LossOf | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[Smaller, str]:
    """The fastest of several prunings that leave the same FLOPs.

    Args:
        model: As for `prune_channels`.
        example: As for `prune_channels`; the first image of each input is timed.
        pruning: Its share is of the FLOPs here.
        faster: The least speed-up that is wanted; None: any beyond doubt.
        batches: Of calibration, with "taylor".
        loss_of: As for `prune_channels`.
        on_progress: Told what is under way.

    Returns:
        The fastest, and why it is refused; empty: it is not.

    Raises:
        InputError: No way leaves so many FLOPs.
    """
    first = tuple(one[:1] for one in example)
    whole, wanted = flops(model, first), 1 - pruning.share
    kept = list(batches)
    coupled = coupling(model, example)
    worths = worth(coupled, _squares(model, coupled, pruning, kept, loss_of))
    found: list[Smaller] = []
    for scope, multiple in itertools.product(SCOPES, MULTIPLES):
        on_progress(f"channels by {scope}, widths in multiples of {multiple}")
        low, high = 0.0, 1.0
        tried: list[tuple[float, Pruning]] = []
        for _ in range(HALVINGS):
            share = (low + high) / 2
            own = msgspec.structs.replace(pruning, share=share, scope=scope)
            gone = going(coupled.families, worths, own, multiple)
            left = flops(cut(model, coupled, gone).model, first) / whole
            tried.append((abs(left - wanted), own))
            low, high = (share, high) if left > wanted else (low, share)
        off, nearest = min(tried, key=lambda pair: pair[0])
        if off <= NEAR:
            found.append(
                prune_channels(
                    model, example, nearest, batches=kept, loss_of=loss_of, multiple=multiple
                )
            )
    if not found:
        raise InputError(
            f"no way of pruning channels leaves {wanted:.0%} of the FLOPs; give another share"
        )
    gains = _gains(model, found, first, on_progress)
    best = found[max(range(len(gains)), key=lambda place: gains[place].ratio)]
    (gain,) = _gains(model, [best], first, on_progress)
    return best, _refusal(gain, pruning.share, faster)


def _gains(
    model: nn.Module,
    found: Sequence[Smaller],
    first: tuple[Tensor, ...],
    on_progress: Callable[[str], None],
) -> list[Speedup]:
    """The speed-up of each, timed in turns with the model as given on one image."""
    models = [model, *(one.model for one in found)]
    given, *others = time_in_turns(
        models, first, round_seconds=ROUND_SECONDS, on_progress=on_progress
    )
    return [speedup(given, one) for one in others]


def _refusal(gain: Speedup, share: float, faster: float | None) -> str:
    """Why such a gain is not enough; empty: it is."""
    fewer = f"{share:.0%} fewer FLOPs"
    if faster is not None and gain.ratio < faster:
        return f"{fewer} are {gain.ratio:.2f} × as fast at batch 1, not {faster:g} ×"
    if not gain.faster:
        return f"{fewer} are not faster at batch 1 beyond doubt"
    return ""


def refusal_by_calls(
    rows: Sequence[ImageRow], schemes: Sequence[Scheme], faster: float | None
) -> str:
    """Why pruning gained too little by the calls that a ledger shows; empty: it did not.

    Args:
        rows: The model as given, then one for each scheme.
        schemes: In order.
        faster: As for `prune_for_latency`.
    """
    for row, scheme in zip(rows[1:], schemes, strict=True):
        if scheme.pruning is not None and row.speedup is not None:
            found = _refusal(row.speedup, scheme.pruning.share, faster)
            if found:
                return found
    return ""


def _squares(
    model: nn.Module,
    coupled: Coupling,
    pruning: Pruning,
    batches: Iterable[Any],
    loss_of: LossOf | None,
) -> Mapping[str, Tensor]:
    """The squares by which channels are ranked, as `prune_channels` ranks them."""
    names = weights_of(model, coupled)
    if pruning.criterion == "magnitude":
        return magnitudes(model, names)
    assert loss_of is not None
    asleep = copy.deepcopy(model).eval().requires_grad_()
    return weights.importance_of(asleep, batches, loss_of, names)
