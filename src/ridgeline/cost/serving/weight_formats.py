"""Formats of weights and caches by the names that engines, checkpoints and tables give them.

A name joins what rounded the weights (GPTQ, AWQ), how many bits that left and, at times, a kernel
or a granularity, in any order: `gptq-int8`, `AWQ-INT4`, `int4-g32`, `fp8_e4m3`. Only the bits, and
whether activations have as few, say how long a step takes.
"""

from __future__ import annotations

import re

from ridgeline.errors import InputError

WEIGHT_BITS = {
    **dict.fromkeys(("fp32", "float32", "tf32"), 32.0),
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16", "half"), 16.0),
    **dict.fromkeys(("fp8", "int8", "w8a8", "w8a16", "float8"), 8.0),
    **dict.fromkeys(("fp4", "nvfp4"), 4.5),
    "mxfp4": 4.25,
    **dict.fromkeys(("int4", "awq", "gptq", "int4-awq", "int4-gptq", "int4-g128", "w4a16"), 4.25),
    **dict.fromkeys(("int4-g32", "q4_0", "nf4"), 4.5),
    "q8_0": 8.5,
}
"""Bits per weight with its scales: one of 16 bits per group of 128 or 32, one of 8 per 16 or 32."""
MULTIPLIED_AS = {
    **dict.fromkeys(("fp8", "float8"), "fp8"),
    **dict.fromkeys(("fp4", "nvfp4", "mxfp4"), "fp4"),
    "w8a8": "int8",
}
"""Weights → matmuls of the same width, where a device has them."""
CACHE_BYTES = {
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16", "half"), 2.0),
    **dict.fromkeys(("fp8", "int8", "float8"), 1.0),
    **dict.fromkeys(("fp32", "float32"), 4.0),
}
METHODS = frozenset(("gptq", "awq", "autoround", "hqq", "bnb", "bitsandbytes"))
"""What rounds weights; beside a number of bits it says no more of the time."""
SILENT = frozenset(("marlin", "machete", "quark", "modelopt", "dynamic", "block", "e4m3", "e5m2"))
"""Kernels, makers and granularities, which change neither bits nor matmuls."""


def weight_format(text: str) -> str:
    """The key of `WEIGHT_BITS` that a name of weights means.

    >>> weight_format("GPTQ-Int8"), weight_format("awq-marlin"), weight_format("FP8_e4m3")
    ('int8', 'awq', 'fp8')

    Raises:
        InputError: No format is so called, or several are.
    """
    name = text.strip().lower()
    if name in WEIGHT_BITS:
        return name
    words = [word for word in _words(name) if word not in SILENT]
    plain = [word for word in words if word not in METHODS]
    named = "-".join(plain or words)
    if named in WEIGHT_BITS:
        return named
    raise InputError(
        f"weights {text!r}: no format is so called; use bf16, fp16, fp32, fp8, w8a8, int8, int4,"
        " nvfp4, mxfp4, nf4, q4_0 or q8_0, what rounded them before or behind it (gptq-int4)"
    )


def cache_format(text: str) -> str:
    """The key of `CACHE_BYTES` that a name of a cache's format means.

    >>> cache_format("fp8_e5m2")
    'fp8'

    Raises:
        InputError: No format is so called.
    """
    named = "-".join(word for word in _words(text.strip().lower()) if word not in SILENT)
    if named in CACHE_BYTES:
        return named
    raise InputError(f"cache {text!r}: no format is so called; use bf16, fp16, fp32, fp8 or int8")


def _words(name: str) -> list[str]:
    """The words of a name, `4-bit` and `8bit` as whole numbers of so many bits."""
    counted = re.sub(r"\b([48])[-_ ]?bit\b", r"int\1", name)
    return [word for word in re.split(r"[^a-z0-9]+", counted) if word]
