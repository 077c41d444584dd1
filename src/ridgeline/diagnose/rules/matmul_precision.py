"""Matmuls in a number format that this hardware multiplies more slowly than it could.

Speeds are the probed peaks of this machine, never those of a data sheet: on one CPU bfloat16 is
four times as fast as float32, on the next it is emulated. A matmul that moves more than it
computes gains only from its smaller operands.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.diagnose.reading import DENSE_MATMULS, Reading, percent, total_seconds
from ridgeline.records import Finding, Operator
from ridgeline.records.matmuls import MATMULS

CAUSES = ("fp32-matmul", "tf32-off", "fp16-on-cpu", "float64-compute")

_PESSIMISM = 0.35
"""Share of the peaks' advantage that arrives at worst: shapes, casts and cold caches cost."""
_LEAST_RATIO = 1.2
_AUTOCAST = {
    "training": "Run forward and loss under torch.autocast with dtype=torch.bfloat16; weights and "
    "optimizer stay in float32.",
    "inference": "Run the model under torch.autocast with dtype=torch.bfloat16, or convert it to "
    "bfloat16.",
}
_BATCHED = frozenset(("aten::bmm", "aten::baddbmm"))
_RECURRENT = frozenset(
    f"aten::{name}" for name in ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
)


def find(reading: Reading) -> list[Finding]:
    """One finding per format that is slower than another of enough range."""
    return [*_float32(reading), *_tf32(reading), *_float16(reading), *_float64(reading)]


def _float32(reading: Reading) -> list[Finding]:
    base = _float32_peak(reading)
    better = reading.peak("bfloat16")
    if not base or not better or better < _LEAST_RATIO * base:
        return []
    settings = reading.profile.settings
    matmuls = reading.operators(MATMULS - _RECURRENT, dtype="float32")
    if reading.profile.habit("math_attention").calls:  # attention written out is a cause of its own
        matmuls = [op for op in matmuls if op.name not in _BATCHED]
    saved = _saves(reading, matmuls, better / base)
    casting = _cast_seconds(reading) if matmuls else 0.0
    seconds = sum(reading.believed_seconds(op) for op in matmuls)
    return reading.finding(
        "fp32-matmul",
        touched_seconds=seconds,
        saves_seconds=(saved[0] - casting, saved[1] - casting),
        confidence=0.85,
        summary=f"{percent(reading.share(seconds))} of the step multiplies matrices in "
        f"float32; this machine does bfloat16 {better / base:.1f} times as fast.",
        evidence={
            "matmul_seconds": seconds,
            "float32_flops_per_second": base,
            "bfloat16_flops_per_second": better,
            "attained_flops_per_second": _attained(matmuls),
        },
        where=[reading.model.forward_site if reading.model is not None else None],
        cure=_AUTOCAST[reading.profile.kind],
        effort="line",
        technique="bf16-autocast" if settings.autocast_dtype is None else None,
    )


def _tf32(reading: Reading) -> list[Finding]:
    base, better = reading.peak("float32"), reading.peak("tf32")
    allowed = reading.profile.settings.matmul_precision != "highest"
    if not reading.on_gpu or allowed or not base or not better or better < _LEAST_RATIO * base:
        return []
    matmuls = reading.operators(DENSE_MATMULS, dtype="float32")
    seconds = sum(reading.believed_seconds(op) for op in matmuls)
    return reading.finding(
        "tf32-off",
        touched_seconds=seconds,
        saves_seconds=_saves(reading, matmuls, better / base),
        confidence=0.85,
        summary=f"{percent(reading.share(seconds))} of the step multiplies float32 matrices "
        f"without the tensor cores, which do TF32 {better / base:.1f} times as fast.",
        evidence={
            "matmul_seconds": seconds,
            "float32_flops_per_second": base,
            "tf32_flops_per_second": better,
        },
        where=[reading.model.forward_site if reading.model is not None else None],
        cure='Call `torch.set_float32_matmul_precision("high")` at the start.',
        effort="flag",
        technique="matmul-precision",
    )


def _float16(reading: Reading) -> list[Finding]:
    slow, fast = reading.peak("float16"), reading.peak("bfloat16") or reading.peak("float32")
    if reading.on_gpu or not slow or not fast or fast < 2 * slow:
        return []
    matmuls = reading.operators(MATMULS, dtype="float16")
    seconds = total_seconds(matmuls)
    if seconds <= 0:
        return []
    saved = seconds * (1 - slow / fast)
    return reading.finding(
        "fp16-on-cpu",
        touched_seconds=seconds,
        saves_seconds=(0.5 * saved, saved),
        confidence=0.9,
        summary=f"{percent(reading.share(seconds))} of the step multiplies float16 matrices, "
        f"which this CPU does {fast / slow:.0f} times more slowly than bfloat16.",
        evidence={
            "matmul_seconds": seconds,
            "float16_flops_per_second": slow,
            "bfloat16_flops_per_second": fast,
            "attained_flops_per_second": _attained(matmuls),
        },
        where=reading.hottest("forward", "other"),
        cure="Use torch.bfloat16 where torch.float16 is asked for.",
        effort="flag",
    )


def _float64(reading: Reading) -> list[Finding]:
    double = [op for op in reading.operators() if op.dtype == "float64"]
    seconds = total_seconds(double)
    if seconds <= 0:
        return []
    # Autocast takes float32 down to its own format, but leaves float64 alone.
    settings = reading.profile.settings
    slow, fast = reading.peak("float64"), reading.peak(settings.autocast_dtype or "float32")
    ratio = max(2.0, fast / slow) if slow and fast else 2.0
    matmuls = total_seconds(op for op in double if op.name in MATMULS)
    saved = matmuls * (1 - 1 / ratio) + 0.5 * (seconds - matmuls)
    where = reading.model.forward_site if reading.model is not None else None
    return reading.finding(
        "float64-compute",
        touched_seconds=seconds,
        saves_seconds=(0.6 * saved, saved),
        confidence=0.85,
        summary=f"{percent(reading.share(seconds))} of the step computes in float64, twice the "
        "bytes of float32 and a fraction of its speed.",
        evidence={
            "float64_seconds": seconds,
            "float64_matmul_seconds": matmuls,
            "speed_without_it_ratio": ratio,
        },
        where=[where],
        cure="Convert inputs and model to float32 (NumPy arrays are float64 unless told "
        "otherwise), unless the mathematics really needs 16 digits.",
        effort="line",
    )


def _float32_peak(reading: Reading) -> float | None:
    """What float32 matmuls can reach with the switches as they stand."""
    fast = "tf32" if reading.on_gpu else "fp32_medium"
    if reading.profile.settings.matmul_precision != "highest" and reading.peak(fast):
        return reading.peak(fast)
    return reading.peak("float32")


def _saves(reading: Reading, matmuls: Iterable[Operator], ratio: float) -> tuple[float, float]:
    """Seconds saved when matmuls run at `ratio` times the rate, pessimistic and optimistic.

    Of no more than their arithmetic explains: a small matmul whose threads wait for a core waits
    in every format.
    """
    low = high = 0.0
    bandwidth = reading.ceilings.bandwidth_bytes_per_second if reading.ceilings else 0.0
    for op in matmuls:
        if op.bound == "overhead":
            continue
        moving = 0.5 * op.bytes / bandwidth if bandwidth else 0.0
        seconds = reading.believed_seconds(op)
        best = seconds - min(seconds, max(seconds / ratio, moving))
        limited = 1.0 if op.bound == "compute" else 0.3
        high += limited * best
        low += limited * min(best, seconds * (1 - 1 / (1 + _PESSIMISM * (ratio - 1))))
    return low, high


def _cast_seconds(reading: Reading) -> float:
    """Autocast reads every float32 weight and writes a bfloat16 copy in each forward."""
    if reading.ceilings is None or reading.model is None:
        return 0.0
    moved = 1.5 * reading.model.parameter_bytes * max(1.0, reading.model.calls_per_step)
    return moved / reading.ceilings.bandwidth_bytes_per_second


def _attained(matmuls: Iterable[Operator]) -> float:
    matmuls = list(matmuls)
    seconds = total_seconds(matmuls)
    return sum(op.flops for op in matmuls) / seconds if seconds else 0.0
