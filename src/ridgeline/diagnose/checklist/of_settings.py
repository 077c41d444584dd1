"""What a profile shows of precision, compilation, kernels and switches."""

from __future__ import annotations

from ridgeline.diagnose.checklist.evidence import (
    Answer,
    OfProfile,
    ProfileEvidence,
    done,
    done_if,
    not_applicable,
    not_done,
)
from ridgeline.records import ModelFacts

_HALF = ("float16", "bfloat16")
_FUSED_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention")
_WHOLE_NUMBERS = ("_int_mm", "_weight_int", "quantized::", "_scaled_mm", "fp8")
_NO_GPU = "every model is on the CPU"


def mixed_precision(found: ProfileEvidence) -> Answer | None:
    """Autocast, or weights of 16 bits."""
    model, settings = _largest(found), found.profile.settings
    if settings.autocast_dtype is not None:
        return done(f"autocast to {settings.autocast_dtype}")
    if model is None:
        return None
    if model.dtype in _HALF:
        return done(f"the weights of {model.name} are {model.dtype}")
    return not_done(f"the weights of {model.name} are {model.dtype}, and no autocast was seen")


def loss_scaling(found: ProfileEvidence) -> Answer | None:
    """A scaler where gradients are float16; bfloat16 has the range of float32."""
    settings, model = found.profile.settings, _largest(found)
    dtype = settings.autocast_dtype or (None if model is None else model.dtype)
    if dtype is None:
        return None
    if dtype != "float16":
        return not_applicable(f"the arithmetic is {dtype}, which has the range of float32")
    seen = "a gradient scaler is on" if settings.gradient_scaler else "no gradient scaler is on"
    return done_if(settings.gradient_scaler, f"float16, and {seen}")


def tf32(found: ProfileEvidence) -> Answer | None:
    """Float32 products on tensor cores."""
    if not found.profile.models:
        return None
    if not found.on_gpu:
        return not_applicable(_NO_GPU)
    precision = found.profile.settings.matmul_precision
    return done_if(precision != "highest", f"float32 matmul precision is {precision}")


def compiled(found: ProfileEvidence) -> Answer | None:
    """The largest model went through torch.compile."""
    model = _largest(found)
    if model is None:
        return None
    if model.compiled:
        return done(f"{model.name} is compiled")
    return not_done(f"{model.name} runs operator by operator")


def whole_graphs(found: ProfileEvidence) -> Answer | None:
    """Compiled code without breaks, and without compiling again in the timed steps."""
    profile = found.profile
    if not profile.models:
        return None
    if not any(model.compiled for model in profile.models):
        return not_applicable("nothing is compiled")
    breaks = sum(one.count for one in profile.graph_breaks)
    again = profile.settings.recompiles
    return done_if(not breaks and not again, f"{breaks} graph breaks, {again} recompilations")


def fused_optimizer(found: ProfileEvidence) -> Answer | None:
    """One kernel for all tensors, where the optimizer has it."""
    optimizers = found.profile.optimizers
    if not optimizers:
        return None
    able = [one for one in optimizers if one.supports_fused]
    if not able:
        return not_applicable(f"{optimizers[0].name} has no fused form")
    slow = [one.name for one in able if not one.fused]
    return done_if(
        not slow, f"{slow[0]} is not fused" if slow else f"{able[0].name} has fused=True"
    )


def fused_attention(found: ProfileEvidence) -> Answer | None:
    """Attention without a matrix of scores in memory."""
    profile = found.profile
    if not profile.models:
        return None
    explicit = profile.habit("math_attention").calls
    if explicit > 0:
        return not_done(f"{explicit:.3g} products with an explicit softmax between them per step")
    kernels = [
        one.name for one in profile.operators if any(part in one.name for part in _FUSED_ATTENTION)
    ]
    if kernels:
        return done(f"{kernels[0]} runs")
    if not any(model.has_attention for model in profile.models):
        return not_applicable("no model has attention")
    return None


def cudnn_benchmark(found: ProfileEvidence) -> Answer | None:
    """Convolutions on a GPU with their fastest algorithm."""
    if not found.profile.models:
        return None
    if not any(model.has_convolutions for model in found.profile.models):
        return not_applicable("no model has convolutions")
    if not found.on_gpu:
        return not_applicable(_NO_GPU)
    benchmark = found.profile.settings.cudnn_benchmark
    return done_if(benchmark, f"cudnn.benchmark is {benchmark}")


def channels_last(found: ProfileEvidence) -> Answer | None:
    """Convolutions on images stored as [height, width, channel]."""
    models = [model for model in found.profile.models if model.has_convolutions]
    if not models:
        return not_applicable("no model has convolutions") if found.profile.models else None
    first = found.profile.habit("channels_first_convolution").calls
    so = all(model.channels_last for model in models) and not first
    return done_if(so, f"{first:.3g} convolutions per step on channels-first input")


def tensor_core_shapes(found: ProfileEvidence) -> Answer | None:
    """Dimensions that are multiples of 8."""
    if not found.profile.models:
        return None
    odd = {name: size for model in found.profile.models for name, size in
           model.odd_dimensions.items()}  # fmt: skip
    if not odd:
        return done("every dimension of a matmul's weights is a multiple of 8")
    name = next(iter(odd))
    return not_done(f"{len(odd)} weights have odd dimensions, such as {odd[name]} of {name}")


def debug_switches(found: ProfileEvidence) -> Answer | None:
    """Anomaly detection, a profiler and deterministic algorithms are off."""
    settings = found.profile.settings
    on = [
        name
        for name, is_on in (
            ("anomaly detection", settings.anomaly_detection),
            ("the autograd profiler", settings.autograd_profiler),
            ("deterministic algorithms", settings.deterministic),
        )
        if is_on
    ]
    return done_if(not on, f"{', '.join(on)} on" if on else "all are off")


def quantised(found: ProfileEvidence) -> Answer | None:
    """Products of 8 bits or fewer."""
    products = [one for one in found.profile.operators if one.flops > 0]
    low = [one.name for one in products if any(part in one.name for part in _WHOLE_NUMBERS)]
    if low:
        return done(f"{low[0]} runs")
    dtypes = sorted({one.dtype for one in products if one.dtype})
    return not_done(f"all products are in {', '.join(dtypes)}") if dtypes else None


def _largest(found: ProfileEvidence) -> ModelFacts | None:
    return found.profile.models[0] if found.profile.models else None


OF_SETTINGS: dict[str, OfProfile] = {
    "mixed-precision": mixed_precision,
    "loss-scaling": loss_scaling,
    "tf32": tf32,
    "compile": compiled,
    "whole-graphs": whole_graphs,
    "fused-optimizer": fused_optimizer,
    "fused-attention": fused_attention,
    "cudnn-benchmark": cudnn_benchmark,
    "channels-last": channels_last,
    "tensor-core-shapes": tensor_core_shapes,
    "debug-switches": debug_switches,
    "served-in-16-bits": mixed_precision,
    "served-compiled": compiled,
    "served-fused-attention": fused_attention,
    "served-channels-last": channels_last,
    "quantisation": quantised,
}
