"""What a kernel's name tells, which is all that a trace says: what it does, and its short form.

Rules are tried in order, the first that matches decides. Names come from CUDA libraries (cuBLAS
`sgemm`, `s16816gemm`, `nvjet`; cuDNN `xmma_fprop`), AMD's (Tensile's `Cijk_`, MIOpen's `igemm`),
torch (`vectorized_elementwise_kernel`), Triton's inductor prefixes (`triton_poi`: pointwise,
`triton_red` and `triton_per`: reductions) and communication libraries (nccl, rccl, msccl, DeepEP,
NVSHMEM, vLLM's `cross_device_reduce`, symmetric memory's `multimem_…`).
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np

from ridgeline.trace.columns import ABSENT, Codes, Kind, Mask, Trace
from ridgeline.trace.sorting import distinct


class KernelClass(IntEnum):
    """The classes, in the order of `KERNEL_CLASSES`."""

    GEMM = 0
    CONVOLUTION = 1
    ATTENTION = 2
    NORM = 3
    ELEMENTWISE = 4
    REDUCTION = 5
    INDEXING = 6
    OPTIMIZER = 7
    COMMUNICATION = 8
    COPY = 9
    OTHER = 10


KERNEL_CLASSES = tuple(kind.name.lower() for kind in KernelClass)

_RULES: tuple[tuple[KernelClass, tuple[str, ...], re.Pattern[str] | None], ...] = (
    (
        KernelClass.COMMUNICATION,
        ("nccl", "rccl", "deepep", "deep_ep", "nvshmem", "rocshmem", "multimem_", "msccl",
         "cross_device_reduce", "allreduce", "all_reduce", "allgather", "all_gather",
         "reducescatter", "reduce_scatter", "alltoall", "all_to_all", "quick_reduce",
         "quickreduce"),
        None,
    ),
    (KernelClass.OPTIMIZER, ("fused_adam", "fusedadam", "fused_sgd", "fusedsgd"),
     re.compile(r"multi_tensor_apply.*(adam|sgd|lamb|optimizer)")),
    (
        KernelClass.ATTENTION,
        ("flash", "fmha", "attention", "attn", "paged_", "sdpa", "mha_", "_fwd_splitkv", "mla_"),
        None,
    ),
    (
        KernelClass.CONVOLUTION,
        ("conv", "fprop", "dgrad", "wgrad", "scudnn", "cudnn_infer", "implicit_gemm", "winograd",
         "miopen", "igemm", "nchwtonhwc", "nhwctonchw"),
        None,
    ),
    (
        KernelClass.GEMM,
        ("gemm", "nvjet", "cijk_", "matmul", "gemv", "splitk", "_mm_", "wgmma", "xmma",
         "dot_kernel", "cublas", "moe_align", "addmm"),
        re.compile(r"cutlass.*(tensorop|simt)|\bbmm|_mm\b"),
    ),
    (
        KernelClass.NORM,
        ("layer_norm", "layernorm", "batch_norm", "batchnorm", "group_norm", "groupnorm",
         "rms_norm", "rmsnorm", "cudnn::bn", "normalization", "_norm_"),
        re.compile(r"\bbn_"),
    ),
    (KernelClass.OPTIMIZER, ("multi_tensor_apply",), None),
    (
        KernelClass.INDEXING,
        ("embedding", "index", "gather", "scatter", "sort", "topk", "cub::", "scan", "nonzero",
         "unique", "where", "radix", "rocprim"),
        None,
    ),
    (
        KernelClass.REDUCTION,
        ("reduce", "softmax", "triton_red_", "triton_per_", "argmax", "nll_loss", "cross_entropy",
         "crossentropy", "max_pool", "maxpool", "avg_pool", "norm_kernel", "logsumexp"),
        re.compile(r"_sum\b|adaptive_.*pool"),
    ),
    (
        KernelClass.COPY,
        ("catarraybatchedcopy", "direct_copy", "copy_kernel", "memcpy", "memset", "fill_",
         "fillfunctor", "transpose"),
        re.compile(r"\bcopy_"),
    ),
    (
        KernelClass.ELEMENTWISE,
        ("elementwise", "triton_poi_", "pointwise", "functor", "activation", "silu", "gelu",
         "relu", "dropout", "rotary", "rope", "distribution_", "cast", "quant", "arange",
         "upsample", "tanh", "sigmoid", "act_and_mul"),
        None,
    ),
)  # fmt: skip
"""(class, parts of a name, pattern), for names in small letters."""
_TENSOR_CORE = (
    "hmma", "s16816", "s1688", "i16832", "s884", "h884", "h1688", "h16816", "wgmma", "nvjet",
    "gmma", "tensorop", "flash", "fmha", "tf32f32", "tcgen05", "utcmma", "_mxe", "mfma",
)  # fmt: skip
_TENSOR_CORE_PATTERN = re.compile(
    r"xmma_(gemm|fprop|dgrad|wgrad).*(tf32|f16|bf16)|f16.*tilesize|_mi\d+x\d+"
)
_NO_TENSOR_CORE = ("sgemm", "ffma", "scudnn", "_simt_")


@lru_cache(maxsize=65536)
def class_of_name(name: str) -> KernelClass:
    """What a kernel of this name does.

    >>> class_of_name("ampere_sgemm_128x64_nn").name, class_of_name("triton_poi_fused_add_0").name
    ('GEMM', 'ELEMENTWISE')
    """
    name = name.lower()
    for kind, parts, pattern in _RULES:
        if any(part in name for part in parts) or (pattern is not None and pattern.search(name)):
            return kind
    return KernelClass.OTHER


@lru_cache(maxsize=65536)
def on_tensor_cores(name: str) -> bool:
    """Does the name say that the kernel multiplies on tensor (or matrix) cores?

    >>> on_tensor_cores("ampere_fp16_s16816gemm_fp16_128x64"), on_tensor_cores("volta_sgemm_64x64")
    (True, False)
    """
    name = name.lower()
    if any(part in name for part in _NO_TENSOR_CORE):
        return False
    return any(part in name for part in _TENSOR_CORE) or bool(_TENSOR_CORE_PATTERN.search(name))


@lru_cache(maxsize=65536)
def on_plain_fp32(name: str) -> bool:
    """Does the name say that the kernel multiplies fp32 numbers without tensor cores?

    >>> on_plain_fp32("volta_sgemm_128x64_nn"), on_plain_fp32("ampere_s16816gemm_bf16")
    (True, False)
    """
    return any(part in name.lower() for part in _NO_TENSOR_CORE)


def kernel_classes(trace: Trace) -> Codes:
    """`KernelClass` of each GPU event; copies and fills are COPY."""
    return trace.derived("kernel_classes", _kernel_classes)


def _kernel_classes(trace: Trace) -> Codes:
    gpu = trace.gpu
    used = distinct(gpu.name)
    places = np.searchsorted(used, gpu.name)
    codes = np.array([class_of_name(trace.names[number]) for number in used], np.int8)
    classes = codes[places] if len(used) else np.zeros(0, np.int8)
    classes[gpu.kind != Kind.KERNEL] = KernelClass.COPY
    classes[(gpu.collective != ABSENT) & (gpu.kind == Kind.KERNEL)] = KernelClass.COMMUNICATION
    return classes


def is_communication(trace: Trace) -> Mask:
    """Which GPU events are communication kernels."""
    return trace.derived("is_communication", _is_communication)


def _is_communication(trace: Trace) -> Mask:
    talks: Mask = kernel_classes(trace) == KernelClass.COMMUNICATION
    return talks


_RETURNS = re.compile(r"^(void|int|float|bool|auto)\s+")
_CPLUSPLUS = re.compile(r"[<(]")
_FRAME = re.compile(r"\(\d+\): |^(aten|autograd|torch|nn\.Module|ProfilerStep|enumerate)\b")
_WRAPPERS = ("Kernel", "Kernel2", "device_kernel")
"""Templates that only run what their argument names."""
_FUNCTOR = re.compile(r"(\w*[Ff]unctor\w*|\w+_kernel_cuda|\w+_kernel_impl)")


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """The name of a kernel without what a compiler adds to it.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>"
    ...            ", at::detail::Array<char*, 1> >(int, at::native::FillFunctor<int>)")
    'vectorized_elementwise_kernel FillFunctor'
    >>> short_name("ampere_sgemm_128x64_nn"), short_name("aten::add")
    ('ampere_sgemm_128x64_nn', 'aten::add')
    >>> short_name("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)")
    'cutlass_80_tensorop_s1688gemm'
    >>> short_name("train.py(12): step"), short_name("<built-in function zoom>")
    ('train.py(12): step', '<built-in function zoom>')
    """
    if name.startswith(("Mem", "<")) or _FRAME.search(name) or not _CPLUSPLUS.search(name):
        return name
    plain = _RETURNS.sub("", name).replace("(anonymous namespace)", "anonymous")
    plain = plain.replace("<unnamed>", "anonymous").replace("::operator()", "")
    head = plain.split("<", 1)[0].split("(", 1)[0].strip()
    own = head.rsplit("::", 1)[-1] or head
    if own in _WRAPPERS and "<" in plain:
        return plain.split("<", 1)[1].split("<", 1)[0].split(">", 1)[0].split(",", 1)[0].strip()
    found = [part for part in _FUNCTOR.findall(plain) if part not in {own, "Functor"}]
    return f"{own} {found[0]}" if found else own
