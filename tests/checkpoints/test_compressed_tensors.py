"""What is saved loads in transformers and in the server, and computes what was promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.initialize import is_cached_attention_module
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from tests.checkpoints.tiny_llama import logits, saved, tiny, write
from transformers import AutoModelForCausalLM

from ridgeline.checkpoints.compressed_writer import (
    CompressedWriter,
    check_scheme,
    check_together,
    described,
    layout,
    tensors_of,
)
from ridgeline.checkpoints.quantised import ActivationScales, Quantised
from ridgeline.compress.rounding import in_groups, to_nearest
from ridgeline.compress.saved.whole_model import whole_model
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse
from ridgeline.serve.weights import FrozenLinear, load_compressed

WEIGHT_ONLY = (
    "w2a16-g32",
    "w3a16-g32",
    "w4a16-g32",
    "w4a16-g32-asym",
    "w5a16-channel-asym",
    "w8a16-g32",
    "w8a16-tensor",
    "w8a16-tensor-asym",
    "fp8a16",
    "fp8a16-tensor",
    "mxfp4a16",
    "mxfp8a16",
    "nvfp4a16",
)
WITH_INPUTS = ("w8a8", "w8a8-static", "w4a8-g32", "fp8", "fp8-static", "mxfp4", "mxfp8", "nvfp4")
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HEAD = {"lm_head": "lm_head"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, Path]:
    return {dtype: saved(tmp_path_factory.mktemp("source"), dtype) for dtype in (FLOAT32, BFLOAT16)}


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_transformers_computes_the_same_logits(
    name: str, dtype: torch.dtype, sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    promised = write(sources[dtype], tmp_path / "out", name)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    found, expected = logits(loaded), logits(promised)
    assert found.dtype == dtype
    if name == "nvfp4a16" and dtype == FLOAT32:
        # compressed-tensors rounds the product of code and scales to bfloat16.
        assert (found - expected).abs().max() <= 2e-2 * expected.abs().max()
    else:
        assert torch.equal(found, expected)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", WITH_INPUTS)
def test_transformers_rounds_inputs_the_same(
    name: str, sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    blocks = name.startswith(("mx", "nv"))
    dtype = BFLOAT16 if blocks else FLOAT32
    expected = logits(write(sources[FLOAT32], tmp_path / "out", name, dtype))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    found = logits(loaded)
    assert found.dtype == dtype, "float32 models with blocks are loaded as bfloat16"
    if not blocks:
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    "names",
    [
        "w4a16-g32 w8a16-channel w2a16-g32",
        "w8a8-static w3a16-g32 fp8a16",
        "mxfp4a16 w8a8",
        "w8a16-channel nvfp4a16",
        "mxfp8a16 w8a16-g32",
    ],
)
def test_transformers_reads_models_whose_layers_have_several_schemes(
    names: str, sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    blocks = any(part in names for part in ("mx", "nv"))
    expected = logits(
        write(sources[FLOAT32], tmp_path / "out", names, BFLOAT16 if blocks else None)
    )
    found = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    # In bfloat16 an input that lies between two levels may go to the other one.
    limit = 5e-2 if blocks else 1e-5
    assert (found - expected).norm() <= limit * expected.norm()


@pytest.mark.sweep("w4a16-g32", "fp8")
@pytest.mark.parametrize("name", [*WEIGHT_ONLY, "fp8", "mxfp4", "mxfp8", "nvfp4", "w4a8-g32"])
def test_the_server_multiplies_by_the_same_weights(
    name: str, sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    expected = write(sources[FLOAT32], tmp_path / "out", name)
    model = load_compressed(str(tmp_path / "out"), FLOAT32)
    layers = {key: one for key, one in model.named_modules() if isinstance(one, FrozenLinear)}
    assert len(layers) == 14
    for key, layer in layers.items():
        weight = expected.get_submodule(key).weight
        assert torch.allclose(layer.dequantised().float(), weight, rtol=2**-23, atol=0)
    if parse(name).activations is None:
        promised = logits(expected)
        assert (logits(model) - promised).abs().max() <= 3e-6 * promised.abs().max()


@pytest.mark.parametrize(
    "name",
    [
        "w4a16",
        "w4a16-asym",
        "w3a16-g32",
        "w8a16",
        "w8a8",
        "fp8",
        "mxfp4-roundup",
        "mxfp8-roundup",
    ],
)
def test_files_are_byte_for_byte_what_compressed_tensors_writes(name: str) -> None:
    scheme = parse(name)
    assert scheme.weights is not None
    inputs = None if scheme.activations is None else ActivationScales(format=scheme.activations)
    made = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 256, generator=made) * torch.exp(
        2 * torch.randn(32, 1, generator=made)
    )
    weight[3] = 0
    theirs = QuantizationScheme(
        targets=["Linear"],
        weights=described(scheme.weights),
        input_activations=described(inputs.format) if inputs else None,
    )
    grouped = in_groups(weight, scheme.weights)
    scales, zeros = calculate_qparams(grouped.amin(-1), grouped.amax(-1), theirs.weights)
    state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
    compressor = BaseCompressor.get_value_from_registry(
        layout(scheme.weights, inputs.format if inputs else None)
    )
    expected = compressor.compress(state, theirs)
    found = tensors_of(to_nearest(weight, scheme.weights), inputs)
    assert set(found) == set(expected)
    for part, tensor in expected.items():
        assert found[part].dtype == tensor.dtype, part
        assert found[part].shape == tensor.shape, part
        assert torch.equal(found[part].view(torch.uint8), tensor.view(torch.uint8)), part


def test_a_big_model_is_several_shards_and_an_index(
    sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    expected = logits(write(sources[FLOAT32], tmp_path / "one", "w8a8"))
    write(sources[FLOAT32], tmp_path / "many", "w8a8", limit_bytes=20_000)
    names = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    assert len(names) > 3
    index = json.loads((tmp_path / "many/model.safetensors.index.json").read_text())
    whole = load_file(tmp_path / "one/model.safetensors")
    parts = {key: load_file(tmp_path / "many" / file) for key, file in index["weight_map"].items()}
    assert set(parts) == set(whole)
    for key, tensor in whole.items():
        assert torch.equal(parts[key][key].view(torch.uint8), tensor.view(torch.uint8)), key
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    found = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "many"))
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


def test_layers_may_be_of_different_schemes(
    sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    model = tiny()
    source = sources[FLOAT32]
    config = json.loads((source / "config.json").read_text())
    linears = {key: key for key, one in model.named_modules() if type(one) is torch.nn.Linear}
    writer = CompressedWriter(tmp_path / "out", config, source=source, linears=linears)
    for key, tensor in model.state_dict().items():
        scheme = "w4a16-g32" if "mlp" in key else "w8a16-channel"
        form = parse(scheme).weights
        if "proj" in key and "o_proj" not in key and form is not None:
            weight = to_nearest(tensor, form)
            writer.quantised(key.removesuffix(".weight"), weight)
            tensor.copy_(weight.dequantised())
        else:
            writer.dense(key, tensor)
    writer.close()
    about = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert len(about["config_groups"]) == 2
    assert set(about["ignore"]) == {
        "lm_head",
        "model.layers.0.self_attn.o_proj",
        "model.layers.1.self_attn.o_proj",
    }
    expected = logits(model)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), expected)
    served = logits(load_compressed(str(tmp_path / "out"), FLOAT32))
    assert (served - expected).abs().max() <= 3e-6 * expected.abs().max()


def test_a_cache_of_8_bits_is_described_and_loads(
    sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    source, model = sources[FLOAT32], tiny()
    kv = parse("kvfp8").kv
    assert kv is not None
    config = json.loads((source / "config.json").read_text())
    writer = CompressedWriter(tmp_path / "out", config, source=source, linears=HEAD, kv=kv)
    for key, tensor in model.state_dict().items():
        writer.dense(key, tensor)
    scale = ActivationScales(format=kv, scale=torch.tensor([0.02]))
    for number in range(2):
        writer.cache(f"model.layers.{number}.self_attn", scale, scale)
    writer.close()
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored["model.layers.1.self_attn.v_scale"].item() == pytest.approx(0.02)
    about = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert about["kv_cache_scheme"]["num_bits"] == 8
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    if not is_cached_attention_module(loaded.model.layers[1].self_attn):
        return  # compressed-tensors 0.20 knows no cache by the name of transformers 5.24.
    assert loaded.model.layers[1].self_attn.v_scale.item() == pytest.approx(0.02)
    change = (logits(loaded) - logits(model)).abs().max() / logits(model).abs().max()
    assert 0 < change < 0.2


def test_a_model_without_rounded_layers_has_no_quantization_config(
    sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    source, model = sources[FLOAT32], tiny()
    config = json.loads((source / "config.json").read_text())
    writer = CompressedWriter(tmp_path / "out", config, source=source, linears=HEAD)
    for key, tensor in model.state_dict().items():
        writer.dense(key, tensor)
    size = writer.close()
    assert size == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(model)
    )


def test_nothing_is_written_over(sources: dict[torch.dtype, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="there is something already"):
        CompressedWriter(tmp_path / "out", {}, source=sources[FLOAT32], linears={})


def test_what_an_interrupted_writer_left_is_thrown_away(
    sources: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    source = sources[FLOAT32]
    (tmp_path / ".out.saving").mkdir()
    (tmp_path / ".out.saving/.data").write_bytes(b"half a shard")
    expected = logits(write(source, tmp_path / "out", "w8a16-channel"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), expected)


def test_packed_zero_points_beside_other_formats_are_refused() -> None:
    zeros, other = parse("w4a16-g32-asym"), parse("w8a8")
    check_together([zeros, zeros])
    with pytest.raises(InputError, match="'w4a16-g32-asym': its zero points cannot be read"):
        check_together([other, zeros])


def test_what_the_format_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="compressed-tensors has no E5M2"):
        check_scheme(parse("e5m2a16"))
    form = parse("w8a16-g32").weights
    assert form is not None
    ordered = Quantised(
        format=form,
        levels=torch.zeros(1, 64, dtype=torch.int8),
        scales=torch.ones(1, 2),
        order=torch.zeros(64, dtype=torch.int32),
    )
    with pytest.raises(InputError, match="groups of their own order cannot be saved"):
        tensors_of(ordered)


@pytest.fixture
def damaged(sources: dict[torch.dtype, Path], tmp_path: Path) -> Path:
    write(sources[FLOAT32], tmp_path / "out", "w8a16-channel")
    return tmp_path / "out"


READERS = {
    "server": lambda path: load_compressed(str(path), FLOAT32),
    "exports": whole_model,
}


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("keep", [4, 60, -1], ids=["a stump", "half a header", "a byte short"])
def test_a_truncated_file_is_one_clear_line(reader: str, keep: int, damaged: Path) -> None:
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"model\.safetensors: .*fetch it again") as refusal:
        READERS[reader](damaged)
    assert "\n" not in str(refusal.value)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("key", "size"), [("intermediate_size", 128), ("vocab_size", 95), ("num_hidden_layers", 1)]
)
def test_a_config_of_another_model_is_one_clear_line(
    reader: str, key: str, size: int, damaged: Path
) -> None:
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps(config | {key: size}))
    with pytest.raises(InputError) as refusal:
        READERS[reader](damaged)
    assert str(damaged) in str(refusal.value)
    assert "\n" not in str(refusal.value)
