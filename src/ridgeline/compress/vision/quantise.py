"""A vision model, calibration batches and a scheme become a model that computes in integers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import fx, nn

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.vision.adaround import rounded_by_adaround
from ridgeline.compress.vision.batches import Batch, part_of, rows_of
from ridgeline.compress.vision.bias import corrections
from ridgeline.compress.vision.build import built, with_biases
from ridgeline.compress.vision.calibrate import (
    Histograms,
    head_parts,
    layers_apart,
    parts_of,
    ranges_of,
    watched_ranges,
)
from ridgeline.compress.vision.equalise import equalise
from ridgeline.compress.vision.graph import batches_for, check_batches, traced
from ridgeline.compress.vision.layers import VisionLayer, find_layers
from ridgeline.compress.vision.nodes import RoundedTensor
from ridgeline.compress.vision.onnx_program import Names
from ridgeline.compress.vision.plan import LayerPlan
from ridgeline.compress.vision.points import find_points, origin
from ridgeline.compress.vision.weights import rounded_by_gptq, rounded_to_nearest
from ridgeline.errors import InputError
from ridgeline.kernels.fake_quantisation.ranges import Range
from ridgeline.records.scheme import Scheme
from ridgeline.records.scheme_names import parse


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
        example: Batch,
        dynamic: bool = True,
        *,
        names: Names | None = None,
        unsigned: bool = True,
        reduce_range: bool = False,
    ) -> None:
        """Write ONNX with QuantizeLinear and DequantizeLinear.

        Args:
            path: The file; nothing is left there where it fails.
            example: [batch, channels, height, width], batch of 2 or more; a tuple of tensors for a
                model of several inputs.
            dynamic: Whether the batch may differ from the example's.
            names: Of the inputs and of the outputs; None: the exporter's.
            unsigned: Activations as U8 (x86), or as S8 (Arm, TensorRT): the same numbers.
            reduce_range: Weights in 7 bits, for x86 without VNNI, whose sums saturate.

        Raises:
            InputError: The exporter's first line.
        """
        from ridgeline.compress.vision.qdq_onnx import write

        write(
            self.module,
            path,
            example,
            dynamic=dynamic,
            names=names,
            unsigned=unsigned,
            reduce_range=reduce_range,
        )


def quantise(
    model: nn.Module,
    batches: Sequence[Batch],
    scheme: Scheme | str,
    *,
    in_float: Collection[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> QuantisedVision:
    """Quantise a vision model after training.

    Args:
        model: Any module that torch.export takes, called with the tensors of a batch. Not changed.
        batches: Calibration images [n, channels, height, width], real ones, as the model wants; of
            a model with several inputs a tuple of tensors each.
        scheme: Or its name: `w8a8-int8`, `w8a8-int8-cle-biascorr`, `w4a8-int8-adaround`.
        in_float: Layers that stay as they are, by the names of `QuantisedVision.plan`.
        on_progress: Told what is under way.

    Raises:
        InputError: The model cannot be exported, or the scheme is not one for images.
    """
    prepared = prepare(model, batches, scheme, on_progress=on_progress)
    return rounded(prepared, in_float=in_float, on_progress=on_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedVision:
    """A traced model with what calibration saw of it, from which several mixtures can be made."""

    graph: fx.GraphModule
    """In float, folded, equalised where the scheme says so."""
    layers: tuple[VisionLayer, ...]
    seen: Histograms
    batches: tuple[Batch, ...]
    scheme: Scheme
    apart: dict[str, str]
    """Layers that cannot be rounded, and why."""
    weights: dict[str, Quantised]
    """The levels [out, all else] of all layers that have weights and can be rounded."""


def prepare(
    model: nn.Module,
    batches: Sequence[Batch],
    scheme: Scheme | str,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PreparedVision:
    """Trace, fold, equalise and calibrate; arguments and errors as `quantise`."""
    scheme = parse(scheme) if isinstance(scheme, str) else scheme
    _check_scheme(scheme)
    check_batches(batches)
    on_progress("tracing")
    graph = traced(model, batches[0])
    return prepare_graph(graph, batches_for(graph, batches), scheme, on_progress=on_progress)


def prepare_graph(
    graph: fx.GraphModule,
    batches: Sequence[Batch],
    scheme: Scheme,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PreparedVision:
    """Equalise and calibrate a traced graph, which becomes the result's.

    Args:
        graph: From `traced`, or the graph of a `PreparedVision` that was not equalised.
        batches: As `quantise`, checked.
        scheme: One for images.
        on_progress: Told what is under way.

    Raises:
        InputError: The graph has nothing to quantise.
    """
    layers = find_layers(graph, part_of(batches[0], slice(1)))
    if not layers:
        raise InputError("the model has no convolution, linear layer or product to quantise")
    if scheme.equalise:
        on_progress("equalising layers")
        equalise(graph, layers, batches)
        layers = find_layers(graph, part_of(batches[0], slice(1)))
    on_progress(f"calibrating on {sum(rows_of(one) for one in batches)} images")
    watched = {point.node for point in find_points(layers)}
    # A layer in float makes points of what a neighbour's output covered.
    watched |= {origin(node) for layer in layers for node in layer.inputs}
    for by_layer in (parts_of(layers), head_parts(layers)):
        watched |= {part for parts in by_layer.values() for part in parts}
    seen = watched_ranges(graph, watched, batches)
    apart = layers_apart(layers, seen)
    kept = [layer for layer in layers if layer.name not in apart]
    assert scheme.activations is not None
    ranges = ranges_of(layers, find_points(layers, apart), seen, scheme.activations)
    return PreparedVision(
        graph=graph,
        layers=layers,
        seen=seen,
        batches=tuple(batches),
        scheme=scheme,
        apart=apart,
        weights=_weights(graph, kept, scheme, ranges, batches, on_progress),
    )


def rounded(
    prepared: PreparedVision,
    *,
    in_float: Collection[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> QuantisedVision:
    """Round all layers but some.

    Raises:
        InputError: A name in `in_float` that no layer has.
    """
    _check_names(prepared, in_float)
    reasons = prepared.apart | dict.fromkeys(in_float, "asked for")
    layers = [layer for layer in prepared.layers if layer.name not in reasons]
    points = find_points(prepared.layers, reasons)
    assert prepared.scheme.activations is not None
    ranges = ranges_of(prepared.layers, points, prepared.seen, prepared.scheme.activations)
    weights = {one: found for one, found in prepared.weights.items() if one not in reasons}
    parts = (prepared.layers, points, ranges, weights, prepared.scheme, reasons)
    module = built(prepared.graph, *parts)
    if prepared.scheme.correct_bias:
        on_progress("correcting biases")
        found = corrections(prepared.graph, module, layers, prepared.batches)
        corrected = with_biases(prepared.graph, layers, found)
        module = built(corrected, *parts)
    return QuantisedVision(
        module=module, plan=_plan(prepared, weights, reasons), scheme=prepared.scheme
    )


def _weights(
    graph: fx.GraphModule,
    layers: Sequence[VisionLayer],
    scheme: Scheme,
    ranges: dict[fx.Node, Range],
    batches: Sequence[Batch],
    on_progress: Callable[[str], None],
) -> dict[str, Quantised]:
    assert scheme.activations is not None
    scales = {}
    if not scheme.activations.dynamic:
        for layer in layers:
            source = origin(layer.inputs[0])
            if source in ranges:
                scales[layer.name] = RoundedTensor(scheme.activations, ranges[source]).scale
    found = rounded_to_nearest(graph, layers, scheme, scales)
    if scheme.method == "gptq":
        on_progress("rounding by GPTQ")
        found |= rounded_by_gptq(graph, layers, scheme, batches, scales)
    elif scheme.method == "adaround":
        found = rounded_by_adaround(graph, layers, found, batches, on_progress=on_progress)
    return found


def _plan(
    prepared: PreparedVision, weights: dict[str, Quantised], reasons: dict[str, str]
) -> tuple[LayerPlan, ...]:
    scheme = prepared.scheme
    assert scheme.weights is not None
    assert scheme.activations is not None
    found = []
    for layer in prepared.layers:
        kept = layer.name in reasons
        bits = scheme.weights.bits if layer.name in weights else scheme.activations.bits
        found.append(
            LayerPlan(
                layer=layer.name,
                kind=layer.kind,
                macs=layer.macs,
                weight_bits=None if kept else bits,
                activation_bits=None if kept else scheme.activations.bits,
                why=reasons.get(layer.name, scheme.name),
            )
        )
    return tuple(found)


def _check_names(prepared: PreparedVision, names: Collection[str]) -> None:
    known = [layer.name for layer in prepared.layers]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known[:8])}"
            raise InputError(f"no layer is called {name!r}; {hint}")


def _check_scheme(scheme: Scheme) -> None:
    if not scheme.images:
        raise InputError(
            f"scheme {scheme.name!r} is for language models; image models take one with int8, such"
            " as w8a8-int8"
        )
