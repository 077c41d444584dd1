"""Convolutions on channels-last memory, the order in which fast kernels work.

On channels-first tensors each convolution is wrapped in two transpositions. The weights are
converted once, in place; activations follow the weights from the first convolution on. `.view()`
cannot flatten such activations: where it fails it is read as `.reshape()`, in eager and in compiled
code, and the patch says so at each such line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import channels_last_of, parameters
from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.points import Points
from ridgeline.measure.child.sites import site_at, user_site
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import Edit, InsertBefore, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    import torch
    from torch import nn

CARD = Card(
    name="channels-last",
    title="Channels-last memory format",
    cures=("channels-first",),
    costs="Where .view() flattens activations, .reshape() copies them.",
    source="PyTorch tutorial, Channels Last Memory Format in PyTorch",
    equivalence="rounding",
    stage=Stage.LAYOUT,
    breaks_with=("view size is not compatible with input tensor's size and stride",),
)

_AROUND = (
    "aten::convolution", "aten::convolution_backward", "aten::_convolution",
    "aten::mkldnn_convolution", "aten::cudnn_convolution",
    "aten::native_batch_norm", "aten::native_batch_norm_backward", "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward", "aten::max_pool2d_with_indices",
    "aten::max_pool2d_with_indices_backward", "aten::_native_batch_norm_legit",
)  # fmt: skip


def applies(context: Context) -> Applicability:
    """Convolutions run on channels-first tensors."""
    models = context.profile.models
    if not any(model.has_convolutions for model in models):
        return Applicability(False, "the model has no convolutions")
    if all(model.channels_last for model in models if model.has_convolutions):
        return Applicability(False, "the weights are channels-last")
    if context.profile.habit("channels_first_convolution").calls == 0:
        return Applicability(False, "no convolution ran on channels-first tensors")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """A little on a CPU and in float32, more where half-precision tensor cores are fed."""
    half = context.profile.settings.autocast_dtype is not None
    best = 1.8 if context.device == "cuda" and half else 1.3
    return amdahl(context.operator_share(*_AROUND), 1.0, best)


def apply(points: Points, options: Options) -> Undo:
    """Convert the weights in place before the model's first call."""
    import torch

    converted: list[nn.Module] = []
    patched: list[Undo] = []

    def convert(module: nn.Module) -> None:
        formats = [(p, channels_last_of(p)) for p in parameters(module)]
        weights = [(p, last) for p, last in formats if last is not None]
        if all(w.is_contiguous(memory_format=last) for w, last in weights):
            return
        (*others, last) = {last for _, last in weights}
        if others:
            points.refuse(CARD.name, "it convolves images and volumes, whose formats are two")
            return
        module.to(memory_format=last)  # type: ignore[call-overload]
        if not patched:
            patched.append(_let_views_copy(points))
        converted.append(module)
        points.changed(CARD.name, f"{len(weights)} weights of {type(module).__name__} converted")

    points.on_model.append(convert)
    points.on_optimizer.append(_state_follows_weights)

    def undo() -> None:
        in_reverse(patched)()
        points.on_model.remove(convert)
        points.on_optimizer.remove(_state_follows_weights)
        for module in converted:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    return undo


def _let_views_copy(points: Points) -> Undo:
    """Read `.view(sizes)` as `.reshape(sizes)` where the layout allows no view; note its lines."""

    def in_eager(original: Any) -> Any:
        def view(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            try:
                viewed: torch.Tensor = original(tensor, *args, **kwargs)
            except RuntimeError as error:
                if CARD.breaks_with[0] not in str(error):
                    raise
                points.changed_at(CARD.name, attempt(user_site, otherwise=None))
                return tensor.reshape(*args, **kwargs)
            return viewed

        return view

    def in_dynamo(original: Any) -> Any:
        def call_method(traced: Any, tracer: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name != "view" or _gives_dtype([*args, *kwargs.values()]):
                return original(traced, tracer, name, args, kwargs)
            reshaped = original(traced, tracer, "reshape", args, kwargs)
            if attempt(_is_copied, traced, reshaped, otherwise=False):
                line, file = tracer.lineno, tracer.f_code.co_filename
                points.changed_at(CARD.name, attempt(site_at, file, line, otherwise=None))
            return reshaped

        return call_method

    return in_reverse(
        [
            patch("torch:Tensor.view", in_eager),
            patch("torch._dynamo.variables.tensor:TensorVariable.call_method", in_dynamo),
        ]
    )


def _gives_dtype(arguments: list[Any]) -> bool:
    """Is one of Dynamo's arguments a dtype? Such a view is no reshape."""
    import torch

    constants = [one.as_python_constant() for one in arguments if one.is_python_constant()]
    return any(isinstance(constant, torch.dtype) for constant in constants)


def _is_copied(traced: Any, reshaped: Any) -> bool:
    """Does the reshape of a tensor that Dynamo traces need a copy?"""
    before, after = (one.as_proxy().node.meta["example_value"] for one in (traced, reshaped))
    try:
        before.view(after.shape)
    except (RuntimeError, ValueError):
        return True
    return False


def _state_follows_weights(optimizer: torch.optim.Optimizer) -> None:
    """Momenta loaded from a checkpoint have the old order; fused kernels take both as flat."""
    import torch

    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            same = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if same and value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def edits(context: Context, options: Options) -> list[Edit]:
    """One line where the model is complete, and `.reshape()` where `.view()` fails.

    The model is complete before its optimizer is made, or before the loop.
    """
    models = [m for m in context.profile.models if m.has_convolutions]
    volumes = "_3d" if any(3 in model.convolves for model in models) else ""
    code = f"{{model}}.to(memory_format=torch.channels_last{volumes})"
    views: list[Edit] = [
        ReplaceCall(site=site, callee="view", code="{object}.reshape({args})")
        for site in context.changed_at.get(CARD.name, ())
    ]
    sites = [o.site for o in context.profile.optimizers if o.site is not None]
    if sites:
        return [*(InsertBefore(site=site, code=code) for site in sites), *views]
    return [
        *(
            InsertBefore(site=site, code=code, outside_loops=True)
            for site in (model.forward_site for model in models)
            if site is not None
        ),
        *views,
    ]
