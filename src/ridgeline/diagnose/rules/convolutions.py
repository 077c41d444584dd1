"""Convolutions whose layout or algorithm was not chosen for this hardware."""

from __future__ import annotations

from ridgeline.diagnose.reading import CONVOLUTIONS, Reading, percent, total_seconds
from ridgeline.records import Finding

CAUSES = ("channels-first", "cudnn-autotuning")

_ON_GPU = (0.08, 0.35)
"""Share of the time of convolutions and what stands between them that the layout saves on tensor
cores, which compute channels-last: channels-first tensors are transposed before and after."""
_HALF = ("float16", "bfloat16")
_TUNED = (0.02, 0.25)


def find(reading: Reading) -> list[Finding]:
    """Layout, and on a GPU the choice of algorithm."""
    model = reading.model
    if model is None or not model.has_convolutions:
        return []
    convolutions = reading.operators(CONVOLUTIONS)
    seconds = total_seconds(convolutions)
    if seconds <= 0:
        return []
    found: list[Finding] = []
    if reading.profile.habit("channels_first_convolution").calls > 0 and not model.channels_last:
        found += _channels_first(reading, seconds)
    if reading.on_gpu and not reading.profile.settings.cudnn_benchmark:
        found += _autotuning(reading, seconds)
    return found


def _channels_first(reading: Reading, seconds: float) -> list[Finding]:
    saved = _layout_saves(reading, seconds)
    channels_first = reading.profile.habit("channels_first_convolution")
    return reading.finding(
        "channels-first",
        touched_seconds=seconds,
        saves_seconds=saved,
        confidence=0.7,
        summary=f"{channels_first.calls:.3g} convolutions per step get their "
        f"images channel by channel; convolutions take {percent(reading.share(seconds))} of it.",
        evidence={
            "convolution_seconds": seconds,
            "channels_first_per_step": channels_first.calls,
        },
        where=[reading.model.forward_site if reading.model is not None else None],
        cure="Store images and weights channels-last: `.to(memory_format=torch.channels_last)` on "
        "the model and on its input (volumes: `channels_last_3d`).",
        effort="line",
        technique="channels-last",
    )


def _layout_saves(reading: Reading, seconds: float) -> tuple[float, float]:
    if reading.on_gpu:
        half = [op for op in reading.operators(CONVOLUTIONS) if op.dtype in _HALF]
        part = total_seconds(half) or 0.3 * seconds
        return _ON_GPU[0] * part, _ON_GPU[1] * part
    # On a CPU the library reorders channels-first tensors into blocks of its own before and after
    # each convolution: every input, weight and output is read and written once more.
    bandwidth = reading.ceilings.bandwidth_bytes_per_second if reading.ceilings else 0.0
    if not bandwidth:
        return 0.0, 0.0
    reordering = 2 * sum(op.bytes for op in reading.operators(CONVOLUTIONS)) / bandwidth
    return 0.5 * reordering, min(2.5 * reordering, 0.4 * seconds)


def _autotuning(reading: Reading, seconds: float) -> list[Finding]:
    return reading.finding(
        "cudnn-autotuning",
        touched_seconds=seconds,
        saves_seconds=(_TUNED[0] * seconds, _TUNED[1] * seconds),
        confidence=0.6,
        summary=f"Convolutions take {percent(reading.share(seconds))} of the step, and cuDNN's "
        "algorithms for them are picked by rule of thumb.",
        evidence={"convolution_seconds": seconds},
        where=[reading.model.forward_site if reading.model is not None else None],
        cure="Set `torch.backends.cudnn.benchmark = True` if the sizes of images stay the same.",
        effort="flag",
        technique="cudnn-benchmark",
    )
