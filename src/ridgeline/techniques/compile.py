"""Calls of `torch.compile` in place: graphs for operators, pointwise chains fused into kernels.

The module's call is replaced, not the module, so its class, its parameters' names and its
checkpoints stay what they were. Random numbers are drawn as in eager mode
(`fallback_random`), so that dropout does the same and losses can be compared.

In a training script only forwards with gradients run compiled: evaluation and generation, whose
shapes often change from call to call, stay as they are.
"""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parts
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit, FirstOf, InsertBefore
from ridgeline.records.ledger import Options
from ridgeline.records.matmuls import MATMULS
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, trainer_setting

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="compile",
    title="torch.compile",
    cures=("unfused-elementwise", "tiny-operators", "host-python"),
    costs="Compilation at the start, from seconds to minutes; again for every new shape.",
    source="Ansel et al., PyTorch 2, ASPLOS 2024; PyTorch documentation, torch.compile",
    equivalence="rounding",
    stage=Stage.COMPILE,
    slot="runtime",
    optional={"mode": str, "dynamic": bool, "regional": str},
    breaks_with=("torch._dynamo", "torch._inductor"),
)

_RECURRENT = ("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", "aten::_cudnn_rnn",
              "aten::_cudnn_rnn_backward")  # fmt: skip
_ENOUGH_BLOCKS = 4
_NOT_FUSED = (
    "aten::bernoulli", "aten::bernoulli_", "aten::native_dropout", "aten::uniform_",
    "aten::normal_", "aten::random_", "aten::randn", "aten::rand", "aten::randint",
    "aten::randperm", "aten::multinomial", "aten::sort", "aten::topk", "aten::nonzero",
    "aten::unique", "aten::embedding_dense_backward", "aten::index_add", "aten::index_add_",
    "aten::scatter_add", "aten::scatter_add_", "aten::_embedding_bag",
    "aten::_embedding_bag_backward",
)  # fmt: skip
"""Random numbers are drawn as in eager mode; sorting and scattering stay calls of their own."""
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
_SLOW_CONVOLUTION = 0.6
"""Inductor moves a CPU's convolutions to channels-last, whatever their shape: one-dimensional
ones in training were seen at this share of their speed."""
_DISPATCHES_OF_A_CALL = (40, 100)
"""What guards, wrappers and autograd's node take around each call of a compiled module, least and
most, in dispatches with gradient recording. Seen: 40 µs without backward and 86 with, where a
dispatch takes 1.2 µs (a module of three operators, two cores)."""
_OWN_OF_TORCH = frozenset({
    "Sequential", "Linear", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "RNN", "LSTM", "GRU",
    "Transformer", "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer",
    "TransformerDecoderLayer", "MultiheadAttention", "Embedding", "EmbeddingBag",
})  # fmt: skip
"""Classes whose `.compile()` compiles nothing, see `_compiled_call`."""


def applies(context: Context) -> Applicability:
    """Something to fuse, a compiler to do it, and nothing compiled yet."""
    profile = context.profile
    if not profile.models:
        return Applicability(False, "no model was called")
    if any(model.compiled for model in profile.models) or profile.settings.graph_compiles:
        return Applicability(False, "the script compiles already")
    if profile.models[0].scripted:
        return Applicability(False, "Dynamo leaves TorchScript programs as they are")
    if profile.models[0].wrapper == "FullyShardedDataParallel":
        return Applicability(False, "fully sharded parameters are compiled before sharding")
    if context.operator_share(*_RECURRENT) > 0.3:
        return Applicability(False, "Dynamo leaves recurrent layers to their own kernels")
    missing = _missing_compiler(context.device)
    if missing:
        return Applicability(False, missing)
    if _fusible_share(context) < 0.03:
        return Applicability(False, "nearly all time is in matmuls: nothing to fuse")
    return Applicability(True, "")


def _missing_compiler(device: str) -> str | None:
    if device == "cpu" and not any(map(shutil.which, ("g++", "clang++", "cl"))):
        return "no C++ compiler is installed, which torch.compile needs on a CPU"
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton is not installed, which torch.compile needs on a GPU"
    return None


def _fusible_share(context: Context) -> float:
    """Share of the step in forward and backward outside of matmuls: operators and overhead."""
    step = context.profile.step_seconds.mean
    operators = sum(
        operator.seconds / step
        for operator in context.profile.operators
        if operator.phase in ("forward", "backward")
        and operator.name not in MATMULS
        and operator.name not in _NOT_FUSED
    )
    stays = context.matmul_share() + context.operator_share(*_NOT_FUSED)
    rest = context.phase_share("forward", "backward") - stays
    return min(max(operators, rest, 0.0), 1.0)


def options(context: Context) -> list[Options]:
    """Whole model or its repeated block; on a GPU also with CUDA graphs and with tuning."""
    repeated = context.profile.models[0].num_repeated >= _ENOUGH_BLOCKS
    block = str(context.profile.models[0].repeated_block)
    shape: Options = {"dynamic": True} if context.shapes_vary() else {}
    regional: list[Options] = [{**shape, "mode": "default", "regional": block}] if repeated else []
    whole: list[Options] = [{**shape, "mode": "default"}]
    if context.device != "cuda":
        return regional + whole
    graphs: list[Options] = [] if shape else [{"mode": "reduce-overhead"}]
    return graphs + whole + regional + [{**shape, "mode": "max-autotune"}]


def predict(context: Context, options: Options) -> Gain:
    """Pointwise chains fuse; dispatch goes; matmuls and random numbers stay; a call costs more."""
    share = _fusible_share(context)
    best = {"reduce-overhead": 4.0, "max-autotune": 3.2}.get(_mode(options), 3.0)
    if options.get("dynamic"):
        best = 2.0
    if options.get("regional"):  # what lies between the blocks is not fused
        best *= 0.9
    least, most = _calls_cost(context, options)
    slow = 0.0
    if context.device == "cpu":
        slow = context.operator_share(*_CONVOLUTIONS) * (1 / _SLOW_CONVOLUTION - 1)
    return Gain(
        1 / (1 + most + slow - share * (1 - 1 / 1.05)),
        1 / (1 + least - share * (1 - 1 / best)),
    )


def _calls_cost(context: Context, options: Options) -> tuple[float, float]:
    """What calling compiled code adds, least and most, as a share of the step: on a CPU.

    A GPU's host runs ahead of it.
    """
    if context.device != "cpu" or context.ceilings is None:
        return 0.0, 0.0
    model = context.profile.models[0]
    calls = model.calls_per_step * (model.num_repeated if options.get("regional") else 1)
    call = calls * context.ceilings.dispatch_autograd_seconds / context.profile.step_seconds.mean
    least, most = _DISPATCHES_OF_A_CALL
    return least * call, most * call


def apply(points: Points, options: Options) -> Undo:
    """Compile each outermost model's call, or those of its repeated blocks."""
    compiled: list[nn.Module] = []
    before: list[bool] = []

    def compile_model(module: nn.Module) -> None:
        import torch
        from torch._inductor import config

        targets = _targets(module, options)
        if not targets:
            return
        if not before:
            before.append(bool(config.fallback_random))
            config.fallback_random = True
        training = torch.is_grad_enabled()
        for target in targets:
            target._compiled_call_impl = _compiled_call(target, options, training)
            compiled.append(target)
        if points.time_compiled_call is not None and targets[0] is module:
            points.time_compiled_call(module)
        points.changed(CARD.name, f"{len(compiled)} module(s) compiled")

    points.on_model.append(compile_model)

    def undo() -> None:
        points.on_model.remove(compile_model)
        for target in compiled:
            target._compiled_call_impl = None
        if before:
            from torch._inductor import config

            config.fallback_random = before[0]

    return undo


def _targets(module: nn.Module, options: Options) -> list[nn.Module]:
    if any(part._compiled_call_impl is not None for part in parts(module)):
        return []
    if not options.get("regional"):
        return [_unwrapped(module)]
    return [part for part in parts(module) if type(part).__name__ == options["regional"]]


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside a data-parallel wrapper.

    The wrapper keeps its own call and hands over to the compiled inner module, whose graph it
    then splits at its buckets.
    """
    wrapped = type(module).__name__ in ("DistributedDataParallel", "DataParallel")
    return module.module if wrapped else module  # type: ignore[return-value]


def _compiled_call(target: nn.Module, options: Options, training: bool) -> Any:
    """What `target(...)` runs from now on.

    The call goes through a function of ours because Dynamo does not look into modules that
    torch itself defines: `nn.Sequential(...).compile()` compiles nothing.
    """
    import torch

    call = target._call_impl

    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    mode = _mode(options)
    compiled = torch.compile(
        run,
        mode=None if mode == "default" else mode,
        dynamic=True if options.get("dynamic") else None,
    )

    def choose(*args: Any, **kwargs: Any) -> Any:
        if training and not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return compiled(*args, **kwargs)

    return choose


def edits(context: Context, options: Options) -> list[Edit]:
    """`model.compile(…)` where the model is complete: before its optimizer, or the loop."""
    model = context.profile.models[0]
    sites = [o.site for o in context.profile.optimizers if o.site is not None]
    arguments = _arguments(options)
    if options.get("regional"):
        code = (
            "for block in {model}.modules():\n"
            f'    if type(block).__name__ == "{options["regional"]}":\n'
            f"        {_compiling('block', str(options['regional']), arguments)}"
        )
    else:
        code = _compiling("{model}", model.name, arguments)
    places: list[Edit] = [InsertBefore(site=site, code=code) for site in sites[:1]]
    if model.forward_site is not None:
        places.append(InsertBefore(site=model.forward_site, code=code, outside_loops=True))
    if not options.get("dynamic"):
        mode = "True" if _mode(options) == "default" else f'"{_mode(options)}"'
        keyword = "torch_compile" if _mode(options) == "default" else "torch_compile_mode"
        places += trainer_setting(context, keyword, mode)
    if not places:
        return []
    written: list[Edit] = [FirstOf(edits=tuple(places))]
    if model.has_dropout:
        written.append(
            AtStart(
                files=context.files,
                code="import torch._inductor.config\n"
                "torch._inductor.config.fallback_random = True  # dropout as without compile",
            )
        )
    return written


def _compiling(module: str, class_name: str, arguments: str) -> str:
    if class_name not in _OWN_OF_TORCH:
        return f"{module}.compile({arguments})"
    keywords = f", {arguments}" if arguments else ""
    return f"{module}.forward = torch.compile({module}.forward{keywords})"


def _mode(options: Options) -> str:
    return str(options.get("mode", "default"))


def _arguments(options: Options) -> str:
    words = [] if _mode(options) == "default" else [f'mode="{_mode(options)}"']
    if options.get("dynamic"):
        words.append("dynamic=True")
    return ", ".join(words)
