"""A model as an ONNX file: dense, or with int8 weights as QuantizeLinear / DequantizeLinear.

input_ids [batch, tokens] int64 to logits [batch, tokens, vocabulary] float32, both lengths free.
Integer weights of a compressed directory stay in their levels behind a DequantizeLinear, per
tensor, output or group. Activations with a static range pass QuantizeLinear and DequantizeLinear;
those quantised per token are computed so in plain operators. Opset 21, the first with groups.

Each file is run in onnxruntime against PyTorch before it is put in place. onnxruntime by itself
rounds the inputs of int8 products too; `session.qdq_matmulnbits_accuracy_level` = "1" computes what
the file says, and so does the check.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline import quantity
from ridgeline.checkpoints.layers import place_module
from ridgeline.compress.activations import rounded_activations
from ridgeline.compress.saved.whole_model import (
    LevelsLinear,
    WholeModel,
    check_equal,
    check_near,
    example,
    free_shapes,
    whole_model,
)
from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.runtimes.capture.onnx_notes import drop_sources

OPSET = 21
LIMIT_BYTES = 1_900_000_000
"""The most bytes of weights: a protobuf message ends at 2 GiB, and the graph needs some."""

EXACT = ("session.qdq_matmulnbits_accuracy_level", "1")
"""Session option of onnxruntime: inputs of products with int8 weights stay float32."""


def export(directory: Path, out: Path) -> None:
    """Write a model, dense or with integer weights, and check it.

    Raises:
        InputError: Weights in another format, or a model that torch.onnx cannot follow.
        MissingExtra: onnx, onnxruntime or onnxscript.
        RidgelineError: onnxruntime computes something else than PyTorch.
    """
    model = whole_model(directory, torch.float32)
    reference = whole_model(directory, torch.float32)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LevelsLinear):
            if layer.format.kind != "int":
                raise InputError(
                    f"{directory}: weights as {layer.format.kind} are not exported to ONNX; "
                    "integers are (w8a16, w8a8)"
                )
            place_module(model, name, _QdqLinear(layer))
    num_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    if num_bytes > LIMIT_BYTES:
        raise InputError(
            f"{directory}: {quantity.memory(num_bytes)} of weights; an ONNX file holds less than 2"
            " GB, so round to fewer bits or choose --export torch-export"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.stem}.saving.onnx")
    try:
        _write(directory, model, aside)
        if _per_token(reference):
            check_near(reference, _session(aside), str(out))
        else:
            check_equal(reference, _session(aside), str(out), 1e-4)
        aside.replace(out)
    finally:
        aside.unlink(missing_ok=True)


def _per_token(model: nn.Module) -> bool:
    """Whether a layer rounds its inputs with a range for each token."""
    inputs = [layer.inputs for layer in model.modules() if isinstance(layer, LevelsLinear)]
    return any(one is not None and one.scale is None for one in inputs)


class _QdqLinear(nn.Module):
    """Writes the operators of a `LevelsLinear` into an ONNX graph; computes nothing itself."""

    levels: Tensor
    scales: Tensor

    def __init__(self, layer: LevelsLinear) -> None:
        super().__init__()
        self.form, self.inputs = layer.format, layer.inputs
        flat = {"tensor": (), "channel": (-1,)}.get(self.form.share)
        self.register_buffer("levels", layer.levels)
        for name in ("scales", "zeros"):
            values = getattr(layer, name)
            if values is not None:
                values = values.float() if name == "scales" else values
                values = values if flat is None else values.reshape(flat)
            self.register_buffer(name, values)
        self.register_buffer("bias", layer.bias)
        scale = None if self.inputs is None else self.inputs.scale
        zero = None if self.inputs is None else self.inputs.zero
        self.register_buffer("scale", None if scale is None else scale.float().reshape(()))
        zero = torch.zeros((), dtype=torch.int8) if zero is None else zero.reshape(())
        self.register_buffer("zero", zero)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        if self.scale is not None:
            form = {"shape": x.shape, "version": OPSET}
            levels = _operator("QuantizeLinear", (x, self.scale, self.zero), torch.int8, **form)
            x = _operator("DequantizeLinear", (levels, self.scale, self.zero), x.dtype, **form)
        elif self.inputs is not None:
            x = rounded_activations(x, self.inputs)
        attributes: dict[str, Any] = {}
        if self.form.share != "tensor":
            attributes["axis"] = 1 if self.form.group else 0
        if self.form.group:
            attributes["block_size"] = self.form.group
        parts = [part for part in (self.levels, self.scales, self.zeros) if part is not None]
        weight = _operator(
            "DequantizeLinear",
            parts,
            torch.float32,
            attributes,
            shape=self.levels.shape,
            version=OPSET,
        )
        return nn.functional.linear(x, weight, self.bias)


def _operator(
    name: str,
    inputs: Any,
    dtype: torch.dtype,
    attributes: dict[str, Any] | None = None,
    **more: Any,
) -> Tensor:
    made: Tensor = torch.onnx.ops.symbolic(name, inputs, attributes, dtype=dtype, **more)
    return made


def _write(directory: Path, model: WholeModel, to: Path) -> None:
    try:
        import onnxscript  # noqa: F401  # torch.onnx needs it
    except ImportError:
        raise MissingExtra("onnxscript", "compress") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own internals
        try:
            program = torch.onnx.export(
                model,
                (example(model),),
                dynamo=True,
                dynamic_shapes=free_shapes(),
                input_names=["input_ids"],
                output_names=["logits"],
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:  # whatever model code and the tracer raise
            raise InputError(
                f"{directory}: torch.onnx cannot follow this model: {in_words(error)}"
            ) from error
        drop_sources(program).save(to)


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("onnxruntime", "compress") from None
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(ids: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"input_ids": ids.numpy()})[0])

    return run
