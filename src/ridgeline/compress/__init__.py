"""Models made smaller and faster: quantised, pruned, and what it cost, measured.

    judged.py: schemes in order, each row measured, saved if it held; search/ where they are chosen
    run.py → blocks.py (one decoder block in memory at a time) → methods/ or pruning/ → saved/

    material.py     what a compression is given, checked; memory.py: what it will need, foretold
    quantised.py    a weight in few bits; inputs.py: what inputs are rounded to
    rounding.py     the grid of a weight, which all methods share; rescaling.py moves scales
    emulated.py     the result as a module; merging.py: LoRA adapters added to weights
    streaming/      a model read in parts, and its finished blocks kept until all are saved
    watching/       what flows through a block: inputs of weights, who shares them, caches
    observers/      how a range is found: one file each
    methods/        how weights are rounded: one file each
    pruning/        which weights go: one file each; structured/: neurons, heads, layers taken out;
                    channels/: of any network of convolutions
    images/         image classifiers, judged and saved
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
