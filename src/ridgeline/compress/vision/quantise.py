"""A vision model, calibration batches and a scheme become a model that computes in 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from ridgeline.compress.vision.plan import LayerPlan
from ridgeline.records.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedVision:
    """A model whose layers compute as integers do, and what was done to each."""

    module: nn.Module
    """A drop-in for the model: same arguments, same outputs, int8 simulated."""
    plan: tuple[LayerPlan, ...]
    """The layers in the order in which they run."""
    scheme: Scheme

    def qdq_onnx(
        self,
        path: Path,
        example: Tensor,
        dynamic: bool = True,
        *,
        unsigned: bool = True,
        reduce_range: bool = False,
    ) -> None:
        """Write ONNX with QuantizeLinear and DequantizeLinear.

        Args:
            path: The file; nothing is left there where it fails.
            example: [batch, channels, height, width], batch of 2 or more.
            dynamic: Whether the batch may differ from the example's.
            unsigned: Activations as U8 (x86), or as S8 (Arm, TensorRT): the same numbers.
            reduce_range: Weights in 7 bits, for x86 without VNNI, whose sums saturate.

        Raises:
            InputError: The exporter's first line.
        """
        raise NotImplementedError


def quantise(
    model: nn.Module,
    batches: Sequence[Tensor],
    scheme: Scheme | str,
    *,
    in_float: Collection[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> QuantisedVision:
    """Quantise after training.

    Args:
        model: Any module that torch.export takes, called with one tensor of images. Not changed.
        batches: Calibration images [n, channels, height, width], real ones, as the model wants them.
        scheme: Or its name: `w8a8-int8`, `w8a8-int8-cle-biascorr`, `w4a8-int8-adaround`.
        in_float: Layers that stay as they are, by the names of `QuantisedVision.plan`.
        on_progress: Told what is under way.

    Raises:
        InputError: The model cannot be exported, or the scheme is not one for images.
    """
    raise NotImplementedError
