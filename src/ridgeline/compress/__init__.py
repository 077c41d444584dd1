"""Models made smaller and faster: quantised, pruned, and what it cost, measured.

    apply.py     schemes in order, each row measured, saved if it held: start here
    chain.py     schemes and trainings as one ledger, from a file
    run.py       a model directory, one decoder block in memory at a time; head.py its output head
    blocks.py    one block: rescaled, pruned, quantised

    material.py     what a compression is given, checked; memory.py: what it will need, foretold
    rounding.py     the grid of a weight and its range, which all methods share
    activations.py  what activations are quantised to; merging.py: LoRA adapters added to weights
    flow.py         activations from block to block; finished.py: blocks kept until all are saved
    watching/       what flows through a block: activations of weights, who shares them, caches
    methods/        how weights are quantised: one file each
    pruning/        which weights go; structured/: neurons, heads, layers; channels/: of any network
                    of convolutions
    images/         image classifiers, judged and saved
    saved/          the formats that other people's programs load: one file each
    evaluate/       perplexity, agreement with the uncompressed model, size
    search/         which scheme for which layer, under a budget

What a Hugging Face directory is stands in `checkpoints/`.
Number formats (int, fp8, mx, nvfp4) are in `kernels/number_formats/`: training and serving use them
too. What may not enter: training (a recipe of `train/` distils, fine-tunes and trains with rounded
weights), serving, and anything that holds the whole of a large model in memory.

The room is named as what it does, so its name means one thing only: `ridgeline.compress` is a
function, before and after anything of the room was imported, and it is the package too. This file
loads nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ridgeline.compress.evaluate.allowance import Allowance
    from ridgeline.compress.evaluate.judge import Bench, OnProgress
    from ridgeline.compress.material import Material
    from ridgeline.records.compression import CompressionLedger
    from ridgeline.records.scheme import Scheme


def compress(
    material: Material,
    schemes: Sequence[Scheme],
    *,
    adapter: Path | None = None,
    max_loss: Allowance | None = None,
    bench: Bench | None = None,
    on_progress: OnProgress = lambda _: None,
) -> CompressionLedger:
    """Apply schemes in order, measure each row, and save the last unless it lost too much.

    See `ridgeline.compress.apply.compress`.
    """
    from ridgeline.compress import apply

    return apply.compress(
        material, schemes, adapter=adapter, max_loss=max_loss, bench=bench, on_progress=on_progress
    )


# What the import system finds under the room's name: it asks for `__path__` and `__name__` alone,
# and hangs the room's files onto it.
compress.__dict__.update({name: globals()[name] for name in ("__path__", "__spec__", "__file__")})
compress.__name__, compress.__module__ = __name__, "ridgeline"
sys.modules[__name__] = compress  # type: ignore[assignment]
