"""What a compression does to a model, and the names that users give it.

A name says it all, parts joined by dashes: `w4a16-gptq-g128` is 4-bit weights and activations as
they are, rounded by GPTQ, a scale for every 128 weights along the depth. `schemes.toml` lists the
parts, `scheme_names.py` reads them. Several schemes are applied one after another
(`2:4-sparsegpt`, then `w8a8-rtn`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["int", "fp8_e4m3", "fp8_e5m2", "mxfp4", "mxfp8", "nvfp4", "codebook"]
Share = Literal["tensor", "channel", "group", "token"]
Observer = Literal["minmax", "mse", "percentile", "average", "entropy"]
Method = Literal["rtn", "gptq", "awq", "smoothquant", "adaround", "aqlm"]
Criterion = Literal["magnitude", "wanda", "sparsegpt", "taylor", "random"]
Structure = Literal["weights", "neurons", "heads", "layers", "channels"]


class NumberFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the numbers of one tensor are written."""

    kind: Kind
    bits: int
    symmetric: bool = True
    share: Share
    """Which numbers share a scale: all of the tensor, an output row, `group` along the depth, a
    token's activations."""
    group: int | None = None
    """Numbers along the depth that share a scale, with `share="group"`; of kind "codebook", that
    are one entry of a book."""
    observer: Observer = "minmax"
    """How the range is found."""
    dynamic: bool = False
    """The range of activations is taken from each token (with `share="tensor"`, each batch) as it
    comes, not from calibration."""
    round_up: bool = False
    """In mx formats the next power of two as the scale of blocks whose largest number it suits
    better, as compressed-tensors writes them and the OCP specification does not."""


class Pruning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which weights are removed, and how they are chosen."""

    structure: Structure = "weights"
    """The kind of thing that is pruned. `weights` are set to zero one by one; all else is removed:
    a smaller model."""
    criterion: Criterion
    share: float
    """Removed, of the weights, neurons, or heads of each layer, or of the layers (0 to 1)."""
    listed: tuple[tuple[int, int], ...] = ()
    """The heads that go, as (layer, head) from 0; in place of `share`, which is 0 then."""
    pattern: tuple[int, int] | None = None
    """The pattern (n, m): at most n weights of every m along the depth stay, e.g. (2, 4)."""
    block: tuple[int, int] | None = None
    """Outputs and inputs of a block, all of whose weights go or stay; None: one by one."""
    scope: Literal["layer", "global"] = "layer"
    """Whether `share` holds in every layer or over all of them together."""


class Scheme(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One compression of a whole model."""

    name: str
    weights: NumberFormat | None = None
    activations: NumberFormat | None = None
    kv: NumberFormat | None = None
    method: Method = "rtn"
    """How weights are rounded."""
    act_order: bool = False
    """Whether GPTQ takes columns in falling order of their activations' size."""
    pruning: Pruning | None = None
    images: bool = False
    """Whether it is for image models: convolutions too, and tensors between layers in integers."""
    equalise: bool = False
    """Whether, of image models, neighbouring weights are brought to one range first."""
    correct_bias: bool = False
    """Whether, of image models, biases make up for what rounding moves outputs by on average."""
    ignore: tuple[str, ...] = ("lm_head",)
    """Linear layers that stay as they are, by their name or the end of it."""

    @property
    def needs_calibration(self) -> bool:
        """Whether it looks at what flows through the model."""
        static = self.activations is not None and (
            not self.activations.dynamic or self.activations.kind == "nvfp4"
        )
        free = ("magnitude", "random")
        chosen = self.pruning is not None and self.pruning.criterion not in free
        return self.images or self.method != "rtn" or static or self.kv is not None or chosen
