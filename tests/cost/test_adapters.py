"""LoRA and QLoRA in the cost model, against what peft adds and what autograd keeps of it."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.cost.training.adapters import adapted_matmuls
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.memory import layer_activation_bytes
from ridgeline.cost.training.setting import Setting, setting_of
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models.load import load_model
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.stacks import stack
from ridgeline.plan.training.trained import Trained, adapters_of
from ridgeline.records.layout import Layout
from ridgeline.records.recipe_compression import RecipeAdapter

SIZES = "hidden=128,heads=4,kv_heads=2,ffn=352,vocab=128"
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BATCH, SEQ = 2, 32
CASES = pytest.mark.parametrize(
    ("targets", "dropout"),
    [(None, 0.0), (ALL, 0.0), (ALL, 0.1), (("q_proj", "v_proj"), 0.0), (("down_proj",), 0.1)],
)


def adapter_for(targets: tuple[str, ...] | None, dropout: float = 0.0) -> RecipeAdapter | None:
    return None if targets is None else RecipeAdapter(rank=8, targets=targets, dropout=dropout)


def setting_for(adapter: RecipeAdapter | None) -> Setting:
    cluster = parse_cluster("1xH100")
    layout = Layout(micro_batch=BATCH, global_batch=BATCH, compiled=False)
    work = Workload(seq=SEQ, stack=stack("torch"), adapters=adapters_of(Trained(adapter=adapter)))
    model = load_model(f"layers=2,{SIZES}")
    return setting_of(
        model, cluster, work, stack_layouts([layout]), coefficients_for(cluster.device)
    )


def kept_bytes(layers: int, targets: tuple[str, ...] | None, dropout: float) -> int:
    """What autograd keeps of a Llama of so many layers, beside its weights."""
    config = LlamaConfig(
        hidden_size=128, intermediate_size=352, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    if targets is not None:
        model.requires_grad_(requires_grad=False)
        peft = LoraConfig(r=8, target_modules=list(targets), lora_dropout=dropout)
        inject_adapter_in_model(peft, model)
        model.enable_input_require_grads()
    own = {one.untyped_storage().data_ptr() for one in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.model(input_ids=torch.zeros((BATCH, SEQ), dtype=torch.long))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@CASES
def test_a_layer_keeps_what_autograd_keeps_of_it(
    targets: tuple[str, ...] | None, dropout: float
) -> None:
    measured = kept_bytes(3, targets, dropout) - kept_bytes(2, targets, dropout)
    setting = setting_for(adapter_for(targets, dropout))
    foretold = float(layer_activation_bytes(setting)[0])
    if dropout:
        # A mask is of the tensor's own type on a processor, of one byte on a GPU.
        dropped = sum(float((one.share * one.inputs)[0]) for one in adapted_matmuls(setting))
        foretold += BATCH * SEQ * dropped
    assert foretold == pytest.approx(measured, rel=0.005)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "trained"),
    [
        # litgpt, tutorials/resource-tables.md
        ("Llama-2-7B", 8, ("q", "v"), 4_194_304),
        ("Llama-2-13B", 8, ("q_proj", "v_proj"), 6_553_600),
        ("layers=24,hidden=2048,heads=32,ffn=8192,vocab=51200", 8, ("q", "v"), 1_572_864),
        # peft's print_trainable_parameters of Llama 3 8B, all linear layers
        ("Llama-3-8B", 16, (), 41_943_040),
    ],
)
def test_as_many_parameters_are_trained_as_published(
    model: str, rank: int, targets: tuple[str, ...], trained: int
) -> None:
    adapter = RecipeAdapter(rank=rank, targets=targets)
    layout = Layout(micro_batch=1, global_batch=1)
    found = predict_training(
        model, "1xA100", seq=512, layout=layout, trained=Trained(adapter=adapter)
    )
    assert found.trained_parameters == trained


def test_frozen_weights_take_their_bits_and_adapters_their_states() -> None:
    layout = Layout(micro_batch=1, global_batch=4)
    terms = {}
    for kind in ("lora", "qlora"):
        trained = Trained(adapter=RecipeAdapter(kind=kind, rank=16))
        found = predict_training("Llama-3-8B", "1xH100", seq=512, layout=layout, trained=trained)
        terms[kind] = found.memory.stages[0].terms
        beside = found.trained_parameters
        # bf16 gradients and two bf16 moments.
        assert terms[kind]["gradients"] == pytest.approx(2 * beside)
        assert terms[kind]["optimizer"] == pytest.approx(4 * beside)
        assert terms[kind]["master"] == 0.0
        assert (found.breakdown["dequantise"] > 0.0) is (kind == "qlora")
    linear = 6_979_588_096 + 66 * 4096 - 4096  # the layers of Llama 3 8B, norms included
    spared = terms["lora"]["weights"] - terms["qlora"]["weights"]
    assert spared == pytest.approx(linear * (2.0 - 4.25 / 8), rel=1e-3)


def test_sharding_splits_frozen_weights_and_gathers_them_in_few_bits() -> None:
    whole, split = (
        predict_training(
            "Llama-3-8B",
            f"{ranks}xH100",
            seq=512,
            layout=Layout(dp=ranks, fsdp=ranks, zero=3 if ranks > 1 else 0, global_batch=ranks),
            trained=Trained(adapter=RecipeAdapter(kind="qlora")),
        )
        for ranks in (1, 4)
    )
    kept = [one.memory.stages[0].terms["weights"] for one in (whole, split)]
    assert kept[1] == pytest.approx(kept[0] / 4, rel=0.01)
    whole_weights = predict_training(
        "Llama-3-8B", "4xH100", seq=512, layout=Layout(dp=4, fsdp=4, zero=3, global_batch=4)
    )
    assert split.sent_bytes["shards"] < 0.3 * whole_weights.sent_bytes["shards"]
    assert split.sent_bytes["data"] == 0.0
