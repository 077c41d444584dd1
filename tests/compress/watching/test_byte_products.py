"""Linear layers in bytes while calibration flows: near enough, anew when a weight changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.compress.watching.attention import BlockKernels
from ridgeline.compress.watching.byte_products import ByteProducts, are_faster
from ridgeline.compress.watching.capture import Matmul, MatmulMode
from ridgeline.records.scheme_names import parse

pytestmark = pytest.mark.skipif(
    not are_faster(), reason="no kernel here multiplies four bytes at once"
)


def a_layer(outputs: int = 48, inputs: int = 96) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, outputs, bias=True, dtype=torch.bfloat16)


def some_inputs(tokens: int = 128, inputs: int = 96) -> Tensor:
    return torch.randn(tokens, inputs, generator=torch.Generator().manual_seed(4))


def through(products: ByteProducts, layer: nn.Linear, x: Tensor) -> Tensor | None:
    with torch.no_grad():
        return products.linear(x, layer.weight, layer.bias)


def lost(found: Tensor, layer: nn.Linear, x: Tensor) -> float:
    wide = functional.linear(x.double(), layer.weight.double(), layer.bias.double()).detach()
    return float((found.double() - wide).square().sum() / wide.square().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_lose_a_small_part_of_a_thousandth_of_their_energy(dtype: torch.dtype) -> None:
    layer, x = a_layer(), some_inputs().to(dtype)
    found = through(ByteProducts(), layer, x)
    assert found is not None
    assert (found.dtype, found.shape) == (torch.bfloat16, (128, 48))
    assert 1e-6 < lost(found, layer, x) < 3e-4


def test_a_weight_that_a_block_has_written_is_packed_anew(
    tiny_model: Callable[..., Path],
) -> None:
    skeleton = ModelSkeleton(CheckpointFiles(tiny_model("llama", torch.bfloat16)))
    names = frozenset(one.piece.target for one in matrices_of(skeleton, 0))
    skeleton.load_block(0, names)
    matrix = matrices_of(skeleton, 0)[0]
    x, products = some_inputs(inputs=matrix.weight.shape[1]), ByteProducts()
    with torch.no_grad():
        before = products.linear(x, matrix.parameter)
        matrix.weight.mul_(2.0)
        after = products.linear(x, matrix.parameter)
    assert before is not None
    assert after is not None
    torch.testing.assert_close(after, 2 * before)


def test_chunks_and_weights_with_outliers_are_left_to_bfloat16() -> None:
    layer, x = a_layer(), some_inputs()
    assert through(ByteProducts(), layer, x) is not None
    x[:, 5] *= 400.0
    assert through(ByteProducts(), layer, x) is None
    with torch.no_grad():
        layer.weight[:, 7] *= 400.0
    assert through(ByteProducts(), layer, some_inputs()) is None


def test_what_is_not_finite_or_no_parameter_is_left_to_bfloat16() -> None:
    layer, x = a_layer(), some_inputs()
    with torch.no_grad():
        assert ByteProducts().linear(x, layer.weight.detach(), layer.bias) is None
    assert ByteProducts().linear(x, layer.weight, layer.bias) is None  # where gradients are wanted
    x[0, 0] = float("nan")
    assert through(ByteProducts(), layer, x) is None


def test_what_watches_a_block_sees_its_layers_all_the_same(
    tiny_model: Callable[..., Path],
) -> None:
    skeleton = ModelSkeleton(CheckpointFiles(tiny_model("llama", torch.bfloat16)))
    skeleton.load_block(0, frozenset(one.piece.target for one in matrices_of(skeleton, 0)))
    matrices = matrices_of(skeleton, 0)
    matrix = matrices[0]
    x, seen = some_inputs(inputs=matrix.weight.shape[1]), []

    def note(matmul: Matmul, given: Tensor) -> None:
        seen.append((matmul[0].name, given is x))

    with torch.no_grad(), MatmulMode(matrices, note), BlockKernels(ByteProducts()):
        functional.linear(x, matrix.parameter)
    assert seen == [(matrix.name, True)]


def test_layers_are_rounded_as_well_as_with_products_in_bfloat16(
    tiny_model: Callable[..., Path],
    tokens: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_model("llama", torch.bfloat16)
    errors = []
    for number, faster in enumerate((True, False)):
        monkeypatch.setattr(
            "ridgeline.compress.watching.byte_products.are_faster", lambda faster=faster: faster
        )
        job = CompressionJob(
            model=path,
            schemes=(parse("w4a16-gptq-g8"),),
            work=tmp_path / str(number),
            tokens=tokens,
        )
        layers = stage(job).layers
        assert not any(layer.notices for layer in layers)
        errors.append([layer.error for layer in layers])
    assert sum(errors[0]) == pytest.approx(sum(errors[1]), rel=0.05)
    assert errors[0] != errors[1]
