"""Formats of weights and caches by the names that engines, checkpoints and tables give them.

A name joins what rounded the weights (GPTQ, AWQ), how many bits that left and, at times, a kernel
or a granularity, in any order: `gptq-int8`, `AWQ-INT4`, `int4-g32`, `fp8_e4m3`. Only the bits, and
whether activations have as few, say how long a step takes. Those of GGUF files round the head, too,
and mix widths: a name stands for the mean of a file (`Q4_K_M`).
"""

from __future__ import annotations

import re

from ridgeline.errors import InputError

GGUF_BITS = {
    "q2_k_s": 2.97, "q2_k": 3.16, "q3_k_s": 3.64, "q3_k_m": 4.0, "q3_k": 4.0, "q3_k_l": 4.3,
    "q4_0": 4.5, "q4_1": 5.0, "q4_k_s": 4.67, "q4_k_m": 4.89, "q4_k": 4.89,
    "q5_0": 5.5, "q5_1": 6.0, "q5_k_s": 5.57, "q5_k_m": 5.7, "q5_k": 5.7, "q6_k": 6.56, "q8_0": 8.5,
    "iq1_s": 2.0, "iq1_m": 2.15, "iq2_xxs": 2.38, "iq2_xs": 2.59, "iq2_s": 2.74, "iq2_m": 2.93,
    "iq3_xxs": 3.25, "iq3_xs": 3.5, "iq3_s": 3.66, "iq3_m": 3.76, "iq4_xs": 4.46, "iq4_nl": 4.68,
    "mxfp4_moe": 4.25,
}  # fmt: skip
"""Bits per weight of Llama 3.1 8B in llama.cpp's files (tools/quantize/README.md); of those with
one scale per block of 32 (`q4_0` to `q5_1`, `q8_0`, `mxfp4_moe`) what a block takes."""
BESIDE_EXPERTS_BITS = {"mxfp4": 16.0, "mxfp4_moe": GGUF_BITS["q8_0"]}
"""Format of routed experts → bits of all other weights, where these differ: GPT-OSS's checkpoints
(its model card, section 2.1), and llama.cpp's files of them (`LLAMA_FTYPE_MOSTLY_MXFP4_MOE`)."""
WEIGHT_BITS = {
    **dict.fromkeys(("fp32", "float32", "tf32", "f32"), 32.0),
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16", "half", "f16"), 16.0),
    **dict.fromkeys(("fp8", "int8", "w8a8", "w8a16", "float8", "mxfp8"), 8.0),
    **dict.fromkeys(("fp4", "nvfp4"), 4.5),
    "mxfp4": 4.25,
    **dict.fromkeys(("int4", "awq", "gptq", "int4-awq", "int4-gptq", "int4-g128", "w4a16"), 4.25),
    **dict.fromkeys(("int4-g32", "nf4"), 4.5),
    **GGUF_BITS,
}
"""Bits per weight with its scales: one of 16 bits per group of 128 or 32, one of 8 per 16 or 32."""
MULTIPLIED_AS = {
    **dict.fromkeys(("fp8", "float8", "mxfp8"), "fp8"),
    **dict.fromkeys(("fp4", "nvfp4", "mxfp4"), "fp4"),
    "w8a8": "int8",
}
"""Weights → matmuls of the same width, where a device has them."""
CACHE_BYTES = {
    **dict.fromkeys(("bf16", "fp16", "bfloat16", "float16", "half", "f16"), 2.0),
    **dict.fromkeys(("fp8", "int8", "float8"), 1.0),
    **dict.fromkeys(("fp32", "float32", "f32"), 4.0),
    **{name: GGUF_BITS[name] / 8.0 for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")},
    **dict.fromkeys(("fp4", "nvfp4"), 4.5 / 8.0),
    "int4": 4.25 / 8.0,
}
"""Bytes of an element with its scales; whole numbers of 4 bits have a scale and a zero point of 16
for each head of a token, 128 wide (LMDeploy's `quant_policy=4`)."""
METHODS = frozenset(("gptq", "awq", "autoround", "hqq", "bnb", "bitsandbytes"))
"""What rounds weights; beside a number of bits it says no more of the time."""
SILENT = frozenset(
    ("marlin", "machete", "quark", "modelopt", "dynamic", "static", "block", "blockwise", "ptpc",
     "channel", "tensor", "e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e2m1", "gguf", "imatrix", "mlx",
     "kv", "wo", "weightonly")
)  # fmt: skip
"""Kernels, makers, files and granularities, which change neither bits nor matmuls."""


def weight_format(text: str) -> str:
    """The key of `WEIGHT_BITS` that a name of weights means.

    >>> weight_format("GPTQ-Int8"), weight_format("awq-marlin"), weight_format("FP8_e4m3")
    ('int8', 'awq', 'fp8')
    >>> weight_format("GGUF Q4_K_M"), weight_format("8-bit")
    ('q4_k_m', 'int8')

    Raises:
        InputError: No format is so called, or several are.
    """
    name = text.strip().lower()
    if name in WEIGHT_BITS:
        return name
    words = [word for word in _words(name) if word not in SILENT]
    plain = [word for word in words if word not in METHODS] or words
    bare = [word for word in plain if not re.fullmatch(r"w\d+a\d+|g\d+", word)] or plain
    for named in ("-".join(plain), "_".join(plain), "-".join(bare)):
        if named in WEIGHT_BITS:
            return named
    raise InputError(
        f"weights {text!r}: no format is so called; use bf16, fp16, fp32, fp8, w8a8, int8, int4,"
        " nvfp4, mxfp4, nf4, q4_k_m or another of GGUF, what rounded them before or behind it"
        " (gptq-int4)"
    )


def cache_format(text: str) -> str:
    """The key of `CACHE_BYTES` that a name of a cache's format means.

    >>> cache_format("fp8_e5m2"), cache_format("4-bit")
    ('fp8', 'int4')

    Raises:
        InputError: No format is so called.
    """
    words = [word for word in _words(text.strip().lower()) if word not in SILENT]
    for named in ("-".join(words), "_".join(words)):
        if named in CACHE_BYTES:
            return named
    raise InputError(
        f"cache {text!r}: no format is so called; use bf16, fp16, fp32, fp8, int8, int4, nvfp4,"
        " q8_0 or q4_0"
    )


def _words(name: str) -> list[str]:
    """The words of a name, `4-bit` and `8bit` as whole numbers of so many bits.

    Floats beside activations of 16 bits (`nvfp4a16`) are widened, as whole numbers are.
    """
    counted = re.sub(r"\b([48])[-_ ]?bit\b", r"int\1", name)
    counted = re.sub(r"\b(?:nv|mx)?fp([48])a16\b", r"int\1", counted)
    return [word for word in re.split(r"[^a-z0-9]+", counted) if word]


def known_width(word: str, known: dict[str, float], what: str) -> float:
    """The width of a format, or a refusal that names those that are known."""
    if word not in known:
        raise InputError(f"{what} {word!r}: use one of {', '.join(known)}")
    return known[word]
