"""What is recomputed gives the same gradients and keeps less, within a budget if asked."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.memory import BYTES_PER_EAGER_LOGIT, kept_layer_bytes
from ridgeline.cost.training.setting import setting_of
from ridgeline.cost.training.workload import Stack, Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models import load_model
from ridgeline.plan.training.coefficients import prior_coefficients
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
)
from ridgeline.records.recipe_memory import RecipeMemory
from ridgeline.train.activations import fit_budget, in_segments, kept_by, offload, recompute
from ridgeline.train.blocks import blocks_of

LAYERS = 4


def recipe_with(**memory: object) -> Recipe:
    return Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(seq=64),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
        layout=Layout(recompute=memory.pop("recompute", "none")),  # type: ignore[arg-type]
        memory=RecipeMemory(**memory),  # type: ignore[arg-type]
    )


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    return AutoModelForCausalLM.from_config(config).train()


def gradients(model: nn.Module) -> tuple[list[Tensor], int]:
    """Of a fixed batch, and the bytes that autograd kept through saved tensors."""
    kept = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    tokens = torch.arange(128).remainder(100).view(2, 64)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(input_ids=tokens, use_cache=False).logits.square().mean()
    loss.backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found, kept


@pytest.mark.parametrize("wanted", ["full", "selective"])
def test_recomputed_gradients_are_bit_equal_and_less_is_kept(model: nn.Module, wanted: str) -> None:
    plain, everything = gradients(model)
    names = [name for name, _ in model.named_parameters()]
    recompute(model, recipe_with(recompute=wanted))
    again, kept = gradients(model)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert kept < 0.7 * everything
    assert names == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize(
    ("memory", "most_kept"), [({"recompute_every": 2}, 0.8), ({"recompute_runs": "sqrt"}, 0.5)]
)
def test_some_blocks_or_runs_of_them_give_bit_equal_gradients(
    model: nn.Module, memory: dict[str, object], most_kept: float
) -> None:
    plain, everything = gradients(model)
    names = [name for name, _ in model.named_parameters()]
    recompute(model, recipe_with(recompute="full", **memory))
    again, kept = gradients(model)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert kept < most_kept * everything
    assert names == [name for name, _ in model.named_parameters()]


def test_runs_of_blocks_keep_one_input_each_and_work_once_more(model: nn.Module) -> None:
    def forward_flops(memory: dict[str, object], wanted: str) -> int:
        recompute(model, recipe_with(recompute=wanted, **memory))
        with FlopCounterMode(display=False) as counted, set_checkpoint_early_stop(False):
            gradients(model)
        return counted.get_total_flops()

    plain = forward_flops({}, "none")
    half = forward_flops({"recompute_every": 2}, "full")
    for block in blocks_of(model):
        block.gradient_checkpointing = False
    runs = forward_flops({"recompute_runs": "sqrt"}, "full")
    # Each block's forward once more: of half of them, or of all.
    assert runs - plain == pytest.approx(2 * (half - plain), rel=1e-9)


@given(layers=st.integers(1, 130))
def test_runs_are_nearly_equal_and_about_a_root_many(layers: int) -> None:
    runs = in_segments([nn.Identity() for _ in range(layers)])
    assert sum(runs) == layers
    assert len(runs) == round(layers**0.5)
    assert max(runs) - min(runs) <= 1


@pytest.mark.parametrize(
    ("memory", "wanted", "words"),
    [
        ({"recompute_every": 0}, "full", "must be 1 or more"),
        ({"recompute_every": 2}, "none", "layout.recompute is none"),
        ({"recompute_runs": "sqrt"}, "selective", "goes with"),
        ({"recompute_runs": "sqrt", "recompute_every": 2}, "full", "goes with"),
        ({"recompute_every": 2, "activation_budget_bytes": 1e9}, "full", "chooses the blocks"),
    ],
)
def test_choices_that_do_not_go_together_are_refused(
    memory: dict[str, object], wanted: str, words: str
) -> None:
    recipe = recipe_with(recompute=wanted, **memory)
    with pytest.raises(InputError, match=words):
        recipe.memory.check(recipe, load_model("gpt2"))


def test_selective_recomputation_runs_every_second_matmul_again(model: nn.Module) -> None:
    """Of query, key, value, output, gate, up and down: key, output and up."""

    def products(wanted: str) -> int:
        recompute(model, recipe_with(recompute=wanted))
        with FlopCounterMode(display=False) as counted:
            gradients(model)
        return counted.get_total_flops()

    plain, selective = products("none"), products("selective")
    tokens, hidden, ffn = 128, 64, 128
    assert selective - plain == LAYERS * 2 * tokens * hidden * (hidden // 2 + hidden + ffn)


def live_bytes() -> int:
    """Bytes of the distinct storages that Python's tensors lead to."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if isinstance(each, Tensor)]
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(sizes.values())


def test_selective_recomputation_keeps_what_the_memory_model_counts(model: nn.Module) -> None:
    """Between forward and backward: each block's input and what of it is selected."""
    recompute(model, recipe_with(recompute="selective"))
    hidden = torch.randn(2, 64, 64)
    positions = torch.arange(64)[None]
    rotary = model.model.rotary_emb(hidden, positions)
    before = live_bytes()
    out = hidden.requires_grad_()
    for block in model.model.layers:
        out = block(out, position_embeddings=rotary, position_ids=positions)
    kept = live_bytes() - before
    spec = load_model("layers=4,hidden=64,ffn=128,heads=4,kv_heads=2,vocab=100")
    layout = Layout(global_batch=2, micro_batch=2, recompute="selective", compiled=False)
    work = Workload(seq=64, stack=Stack(selective_operators=True))
    place = parse_cluster("1xH100")
    setting = setting_of(
        spec, place, work, stack_layouts([layout]), prior_coefficients(place.device)
    )
    # The model counts 16 bits where these are 32; the last block's output lives, the first input
    # lived before.
    assert kept == pytest.approx(2.0 * LAYERS * float(kept_layer_bytes(setting)[0]), rel=0.1)
    out.sum().backward()


def test_an_eager_cross_entropy_holds_fourteen_bytes_a_logit_at_its_peak() -> None:
    peak = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal peak
            found = func(*args, **(kwargs or {}))
            peak = max(peak, live_bytes() - before)
            return found

    before = live_bytes()
    logits = torch.randn(64, 500, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.arange(64)
    with Watch():
        nn.functional.cross_entropy(logits.float(), targets).backward()
    assert peak / logits.numel() == pytest.approx(BYTES_PER_EAGER_LOGIT, rel=0.1)


def test_a_budget_recomputes_only_the_blocks_that_do_not_fit(model: nn.Module) -> None:
    recompute(model, recipe_with(activation_budget_bytes=1.0))
    blocks = blocks_of(model)
    assert all(block.gradient_checkpointing for block in blocks)
    with kept_by(blocks[0]) as counts:
        gradients(model)
    (kept, *_) = counts
    assert kept > 0
    assert blocks[0].gradient_checkpointing
    assert fit_budget(blocks, kept, in_flight=1, budget=2.5 * kept) == LAYERS - 2
    assert [block.gradient_checkpointing for block in blocks] == [True, True, False, False]


def test_what_one_block_keeps_is_what_the_whole_model_keeps_over_its_blocks(
    model: nn.Module,
) -> None:
    blocks = blocks_of(model)
    counted = []
    for block in blocks:
        with kept_by(block) as counts:
            gradients(model)
        counted.append(counts[0])
    assert max(counted) <= 1.05 * min(counted)


def test_a_model_without_repeated_blocks_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="no repeated layers") as caught:
        recompute(nn.Linear(2, 2), recipe_with(recompute="full"))
    assert "\n" not in str(caught.value)


def test_offloading_on_the_host_is_refused_since_there_is_nowhere_else() -> None:
    with pytest.raises(InputError, match="offload_activations"):
        offload(recipe_with(offload_activations=True), torch.device("cpu"))
