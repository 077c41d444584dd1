"""Models made smaller and faster: quantised, pruned, and what it cost, measured.

    judged.py: schemes in order, each row measured, saved if it held; search/ where they are chosen
    run.py → blocks.py (one decoder block in memory at a time) → methods/ or pruning/ → saved/

    quantised.py    a weight in few bits; seen.py: what flowed through a layer in calibration
    observers/      how a range is found: one file each
    methods/        how weights are rounded: one file each
    pruning/        which weights go: one file each; structured/: neurons, heads, layers taken out
    calibration.py  text as batches of tokens; checkpoint.py, skeleton.py: a model read in parts
    flow.py         activations from block to block; watching.py, capture.py: what meets weights
    sharing.py      what shares an input, and what can take its scale over; rescaling.py moves it
    journal.py      finished blocks, kept until all are saved; emulated.py: the result as a module
    saved/          the formats that other people's programs load: one file each
    evaluate/       perplexity, agreement with the uncompressed model, size
    search/         which scheme for which layer, under a budget

Number formats (int, fp8, mx, nvfp4) are in `kernels/number_formats/`: training and serving use them
too. What may not enter: training (a recipe of `train/` distils, fine-tunes and trains with rounded
weights), serving, and anything that holds the whole of a large model in memory.

The room can be called, `ridgeline.compress(material, schemes)`, because it shares its name with
what it does; this file loads nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.compress.material import Material
    from ridgeline.records.compression import CompressionLedger
    from ridgeline.records.scheme import Scheme


class _Room(ModuleType):
    def __call__(
        self, material: Material, schemes: Sequence[Scheme], **options: Any
    ) -> CompressionLedger:
        """`ridgeline.compress.judged.compress`."""
        from ridgeline.compress.judged import compress

        return compress(material, schemes, **options)


sys.modules[__name__].__class__ = _Room
