"""Vision models in integers: exact folding and arithmetic, and files that run in int8 kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.compress.vision.networks import Detector, Residual, images, settled
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.compress.vision import graph as tracing
from ridgeline.compress.vision.nodes import RoundedBias, RoundedTensor, RoundedWeight
from ridgeline.compress.vision.quantise import QuantisedVision, quantise
from ridgeline.compress.vision.sensitivity import sqnr_db
from ridgeline.errors import InputError
from ridgeline.records.scheme import NumberFormat


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return settled(Residual(), images())


@pytest.fixture(scope="module")
def quantised(network: nn.Module) -> QuantisedVision:
    return quantise(network, images(), "w8a8-int8")


@torch.no_grad()
def lost_db(model: nn.Module, found: QuantisedVision, x: Tensor) -> float:
    return sqnr_db(model(x), found.module(x))


def test_folding_batch_normalisation_changes_nothing() -> None:
    torch.manual_seed(0)
    network = settled(Residual(), images()).double()
    x = images()[0].double()
    folded = tracing.traced(network, x)
    assert not [node for node in folded.graph.nodes if "batch_norm" in str(node.target)]
    with torch.no_grad():
        torch.testing.assert_close(folded(x), network(x), rtol=1e-12, atol=1e-12)


def test_eight_bits_cost_little_and_the_model_given_stays_as_it_was(
    network: nn.Module, quantised: QuantisedVision
) -> None:
    before = {name: one.clone() for name, one in network.state_dict().items()}
    assert lost_db(network, quantised, images(batch=5)[1]) > 25
    assert all(torch.equal(before[name], one) for name, one in network.state_dict().items())
    assert [one.layer for one in quantised.plan][:3] == [
        "stem", "blocks.0.conv1", "blocks.0.conv2",
    ]  # fmt: skip
    assert all((one.weight_bits, one.activation_bits) == (8, 8) for one in quantised.plan)
    assert quantised.plan[0].macs == 32 * 32 * 16 * 27


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    ["rtn", "minmax", "average", "percentile", "entropy", "sym", "dynamic", "cle", "biascorr"],
)
def test_every_way_to_find_ranges_keeps_the_outputs(network: nn.Module, options: str) -> None:
    found = quantise(network, images(), f"w8a8-int8-{options}")
    assert lost_db(network, found, images(batch=4)[1]) > 18


@pytest.mark.slow
def test_learned_and_compensated_rounding_win_at_four_bits(network: nn.Module) -> None:
    lost = {
        name: lost_db(network, quantise(network, images(), f"w4a8-int8-{name}"), images(8)[0])
        for name in ("rtn", "gptq", "adaround")
    }
    assert lost["gptq"] > lost["rtn"] + 2
    assert lost["adaround"] > lost["rtn"] + 2


def test_a_convolution_computes_as_integers_do() -> None:
    """Levels out equal those of sums in 64-bit integers, but for ties of the last rounding."""
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU())
    conv = nn.Sequential(conv, nn.Conv2d(24, 48, 5, padding=2, groups=4), nn.ReLU())
    batches = images()
    module = quantise(conv, batches, "w8a8-int8").module
    parts = dict(module.named_modules())
    tensors = [one for one in parts.values() if isinstance(one, RoundedTensor)]
    weights = [one for one in parts.values() if isinstance(one, RoundedWeight)]
    biases = [one for one in parts.values() if isinstance(one, RoundedBias)]
    first, second, given = tensors
    levels = torch.round(batches[0] / given.scale).clamp(-128 - given.zero, 127 - given.zero)
    levels = levels.double()
    settings = [{"stride": 2, "padding": 1}, {"padding": 2, "groups": 4}]
    outs = zip(weights, biases, (first, second), settings, strict=True)
    for weight, bias, after, setting in outs:
        # Sums of products of integers are exact in float64.
        sums = functional.conv2d(levels, weight.levels.double(), bias.levels.double(), **setting)
        real = sums.clamp_min(0) * bias.scales.double().view(-1, 1, 1)
        levels = (real / after.scale).round().clamp(-128 - after.zero, 127 - after.zero)
    with torch.no_grad():
        got = (module(batches[0]).double() / second.scale).round()
    apart = (got - levels).abs()
    assert apart.max() <= 1
    assert (apart > 0).double().mean() < 2e-3


def test_a_bias_far_above_what_its_layer_reads_survives_every_way_to_round() -> None:
    torch.manual_seed(0)
    quiet = nn.Conv2d(3, 8, 3)
    quiet.weight.data *= 1e-7
    quiet.bias.data.zero_()
    model = nn.Sequential(quiet, nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    batches = [torch.randn(4, 3, 16, 16) for _ in range(2)]
    for scheme in ("w8a8-int8", "w8a8-int8-rtn", "w8a8-int8-adaround"):
        assert lost_db(model, quantise(model, batches, scheme), batches[0]) > 30, scheme


@pytest.mark.slow
def test_onnx_runtime_answers_as_the_module_in_int8_kernels(
    quantised: QuantisedVision, tmp_path: Path
) -> None:
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    path, optimised = tmp_path / "model.onnx", tmp_path / "optimised.onnx"
    quantised.qdq_onnx(path, images()[0])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimised)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for batch in (3, 11):
        x = images(batch)[1]
        with torch.no_grad():
            assert (
                sqnr_db(quantised.module(x), torch.tensor(session.run(None, {name: x.numpy()})[0]))
                > 40
            )
    kinds = [node.op_type for node in onnx.load(optimised).graph.node]
    assert kinds.count("QLinearConv") == 9
    assert "Conv" not in kinds
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
def test_openvino_answers_as_the_module(quantised: QuantisedVision, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    path = tmp_path / "model.onnx"
    quantised.qdq_onnx(path, images()[0])
    compiled = openvino.Core().compile_model(
        str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    )
    x = images(4)[1]
    with torch.no_grad():
        assert sqnr_db(quantised.module(x), torch.tensor(compiled(x.numpy())[0])) > 25
    told = [one.get_rt_info() for one in compiled.get_runtime_model().get_ops()]
    run = [
        str(one["primitiveType"].value) for one in told if one["layerType"].value == "Convolution"
    ]
    assert run
    assert all(one.lower().endswith(("i8", "u8")) for one in run), run


class Joined(nn.Module):
    """A convolution that reads pixels and shares in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.after = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.one(x).sigmoid() * 640, self.other(x).sigmoid()]
        return self.after(torch.cat(parts, 1))


def test_a_detectors_boxes_and_scores_keep_a_scale_each() -> None:
    torch.manual_seed(0)
    detector, x = Detector().eval(), images(size=64)
    with torch.no_grad():
        exact, got = detector(x[0]), quantise(detector, x, "w8a8-int8").module(x[0])
    form = NumberFormat(kind="int", bits=8, symmetric=False, share="tensor")
    shared = RoundedTensor(form, (0.0, float(exact.max())))(exact)
    scores = slice(4, None)
    assert sqnr_db(exact[:, scores], shared[:, scores]) < 10
    assert sqnr_db(exact[:, scores], got[:, scores]) > 30
    assert sqnr_db(exact[:, :4], got[:, :4]) > 30


def test_a_layer_that_reads_pixels_and_shares_together_stays_in_float() -> None:
    torch.manual_seed(0)
    plan = quantise(Joined().eval(), images(), "w8a8-int8").plan
    assert [one.in_float for one in plan] == [False, False, True]
    assert "ranges differ" in plan[2].why


class Attends(nn.Module):
    """Patches, one layer of attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, stride=8)
        self.norm, self.qkv = nn.LayerNorm(32), nn.Linear(32, 96)
        self.out, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        parts = self.qkv(self.norm(x)).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.head((x + self.out(mixed.transpose(1, 2).flatten(2))).mean(1))


def test_both_products_of_attention_are_rounded() -> None:
    torch.manual_seed(0)
    model = Attends().eval()
    found = quantise(model, images(), "w8a8-int8")
    assert [one.kind for one in found.plan].count("matmul") == 2
    assert not any(one.in_float for one in found.plan)
    assert lost_db(model, found, images(5)[1]) > 25


class Upsamples(nn.Module):
    """A transposed convolution with groups and batch normalisation behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2, bias=False)
        self.bn, self.stem = nn.BatchNorm2d(6), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.up(self.stem(x)))


def test_transposed_convolutions_are_folded_and_rounded() -> None:
    torch.manual_seed(0)
    model = settled(Upsamples(), images())
    exact = tracing.traced(model.double(), images()[0].double())
    with torch.no_grad():
        x = images()[0].double()
        torch.testing.assert_close(exact(x), model(x), rtol=1e-12, atol=1e-12)
    found = quantise(model.float(), images(), "w8a8-int8")
    assert found.plan[1].kind == "transposed convolution"
    assert lost_db(model, found, images()[1]) > 25


class Asks(nn.Module):
    """A branch on what the images show."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if x.sum() > 0:
            return x * 2
        return x


@pytest.mark.parametrize(
    ("model", "batches", "scheme", "why"),
    [
        (Asks(), images(), "w8a8-int8", r"test_quantise.py:\d+: `if x.sum\(\) > 0:` decides"),
        (nn.Conv2d(3, 4, 3), images(), "w8a8", "is for language models"),
        (nn.Conv2d(3, 4, 3), [], "w8a8-int8", "no calibration batches"),
        (nn.Conv2d(3, 4, 3), [images()[0] / 0], "w8a8-int8", "infinite numbers or NaN"),
        (nn.ReLU(), images(), "w8a8-int8", "no convolution"),
    ],
)
def test_what_cannot_be_quantised_is_refused_in_one_line(
    model: nn.Module, batches: list[Tensor], scheme: str, why: str
) -> None:
    with pytest.raises(InputError, match=why) as refusal:
        quantise(model, batches, scheme)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_a_mistyped_layer_gets_the_nearest_names(network: nn.Module) -> None:
    with pytest.raises(InputError, match=r"did you mean .*blocks\.0\.conv1"):
        quantise(network, images(), "w8a8-int8", in_float=["blocks.0.conv"])
    found = quantise(network, images(), "w8a8-int8", in_float=["blocks.0.conv1"])
    assert [one.layer for one in found.plan if one.in_float] == ["blocks.0.conv1"]


@pytest.mark.slow
def test_dynamic_ranges_have_no_file(network: nn.Module, tmp_path: Path) -> None:
    found = quantise(network, images(), "w8a8-int8-dynamic")
    with pytest.raises(InputError, match="no QuantizeLinear form"):
        found.qdq_onnx(tmp_path / "model.onnx", images()[0])
    assert not list(tmp_path.iterdir())
