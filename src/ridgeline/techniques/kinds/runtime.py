"""Techniques that have the model's calls answered by another runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.ledger import Options
from ridgeline.runtimes import Precision, runtime
from ridgeline.techniques import Applicability, Card, Context, Gain, amdahl
from ridgeline.techniques.kinds.argument import Apply

if TYPE_CHECKING:
    from torch import nn

PRECISIONS: Mapping[str, Precision] = MappingProxyType({"bf16": "bf16", "int8": "int8"})
"""Option of a technique that is a runtime → what it then computes in; float32 without one."""
_GAINS = {"fp32": (1.0, 2.5), "bf16": (1.0, 4.0), "int8": (1.0, 6.0)}
"""How much faster a forward gets, least and most. Seen on one core, 224² images, batch 1: float32
1.1 (ViT-S in AOTInductor) to 3.8 (MobileNetV3 in ONNX Runtime), bfloat16 1.6 to 2.7, int8 3.5 to
5.3."""


class RuntimeParts(NamedTuple):
    """The functions of a technique that is a runtime."""

    applies: Callable[[Context], Applicability]
    options: Callable[[Context], list[Options]]
    predict: Callable[[Context, Options], Gain]
    apply: Apply


def answer_by(card: Card, name: str) -> RuntimeParts:
    """What a technique consists of that has the model's calls answered by another runtime.

    Args:
        card: What the technique says of itself.
        name: The runtime, as `runtimes/` calls it.
    """

    def applies(context: Context) -> Applicability:
        """An inference script on a CPU, and the runtime is there."""
        profile = context.profile
        if profile.kind != "inference":
            return Applicability(False, "the script trains")
        if context.device != "cpu":
            return Applicability(False, f"the model is on {context.device}, it runs on a CPU")
        if profile.models[0].compiled or profile.settings.graph_compiles:
            return Applicability(False, "the script compiles already")
        if profile.models[0].scripted:
            return Applicability(False, "no runtime takes a TorchScript program")
        missing = runtime(name).missing()
        if missing is not None:
            return Applicability(False, f"not tried: {missing}")
        return Applicability(True, "")

    def options(context: Context) -> list[Options]:
        """float32; what the machine multiplies faster; int8 with ranges of the script's inputs."""
        offered = runtime(name).CARD.precisions
        single, half = context.peak("fp32"), context.peak("bf16")
        found: list[Options] = [{}]
        if "bf16" in offered and (single is None or half is None or half > 1.1 * single):
            found.append({"bf16": True})
        if "int8" in offered:
            found.append({"int8": True})
        return found

    def predict(context: Context, options: Options) -> Gain:
        """Fused operators and no dispatch, in the precision that is asked for."""
        return amdahl(context.phase_share("forward"), *_GAINS[_precision(options)])

    def apply(points: Points, options: Options) -> Undo:
        """Put the runtime in the place of each outermost model's call."""
        from ridgeline.measure.child.runtime_call import RuntimeCalls

        answering = RuntimeCalls(points, card.name, runtime(name), _precision(options))
        replaced: list[nn.Module] = []

        def replace(module: nn.Module) -> None:
            if module._compiled_call_impl is not None:
                return
            module._compiled_call_impl = answering.of(module)
            replaced.append(module)
            if points.time_compiled_call is not None:
                points.time_compiled_call(module)

        replace.__module__ = card.module
        points.on_model.append(replace)

        def undo() -> None:
            points.on_model.remove(replace)
            for module in replaced:
                module._compiled_call_impl = None

        return undo

    return RuntimeParts(applies, options, predict, apply)


def _precision(options: Options) -> Precision:
    return next((PRECISIONS[option] for option in options if options[option]), "fp32")
