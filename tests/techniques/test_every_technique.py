"""Every technique through the same checks, and each on a real script under interception."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.techniques.profiles import CUDA, ceilings, context, faulty, replaced
from tests.techniques.rehearsal import Case, Outcome, rehearse

from ridgeline.errors import InputError
from ridgeline.measure.child.points import Points
from ridgeline.records import Site
from ridgeline.records.edits import Edit
from ridgeline.techniques import Context, Stage, all_techniques, options_of, technique

NAMES = sorted(all_techniques())
FAULTY = faulty()
ON_THIS_MACHINE_ONLY = {"thread-affinity"}
"""It applies where cores run several hardware threads."""
CUDA_ONLY = {
    "cuda-graphs", "cudnn-benchmark", "device-prefetch", "fp16-autocast", "fused-kernels",
    "nccl-settings", "no-empty-cache", "pinned-memory",
}  # fmt: skip


# -- the card -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_complete(name):
    card = technique(name).CARD
    for text in (card.title, card.costs, card.source):
        assert len(text) > 5
        assert (
            text[0].isupper()
            or text[0].isdigit()
            or text.startswith(("float", "bfloat", "torch", "cu", "`"))
        )
    assert card.costs.endswith(".")
    assert card.cures
    assert all(cause == cause.lower().replace("_", "-") for cause in card.cures)
    assert isinstance(card.stage, Stage)


@pytest.mark.parametrize("name", NAMES)
def test_the_module_says_what_it_does_and_never_imports_torch_by_itself(name):
    module: Any = technique(name)
    assert len(module.__doc__.splitlines()) > 2
    for function in (module.applies, module.predict, module.apply, module.edits):
        assert function.__doc__


def test_the_parent_judges_without_torch():
    code = (
        "import sys, ridgeline.techniques as t; t.all_techniques(); "
        "assert 'torch' not in sys.modules, 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("loader-workers", {}, "'num_workers' is missing"),
        ("loader-workers", {"num_workers": "two"}, "num_workers is 'two'; it must be of type int"),
        ("loader-workers", {"num_workers": True}, "it must be of type int"),
        ("loader-workers", {"num_workers": 2, "pin": 1}, "no option 'pin'; it takes num_workers"),
        ("fused-optimizer", {"on": True}, "no option 'on'; it takes none"),
    ],
)
def test_options_that_cannot_be_applied_are_named(name, options, message):
    with pytest.raises(InputError, match=message):
        technique(name).CARD.check(options)


def test_an_unknown_technique_lists_the_known_ones():
    with pytest.raises(InputError, match="known: activation-checkpointing"):
        technique("faster-please")


# -- judging ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_script_needs_nothing(name):
    fits = technique(name).applies(context())
    assert not fits.ok
    assert fits.reason
    assert not fits.reason.endswith(".")


@pytest.mark.parametrize("name", sorted(set(NAMES) - ON_THIS_MACHINE_ONLY))
def test_a_script_with_the_fault_is_offered_the_cure_and_a_sane_gain(name):
    module = technique(name)
    fits = module.applies(FAULTY[name])
    assert fits.ok, fits.reason
    settings = options_of(module, FAULTY[name])
    assert settings
    assert all(settings.count(one) == 1 for one in settings)
    for options in settings:
        module.CARD.check(options)
        gain = module.predict(FAULTY[name], options)
        assert 0.5 < gain.low <= gain.high < 100
        assert gain.high > 1.0


@pytest.mark.parametrize("name", sorted(CUDA_ONLY))
def test_a_technique_for_gpus_says_so_on_a_cpu(name):
    given = FAULTY[name]
    model = replace(given.profile.models[0], device="cpu")
    fits = technique(name).applies(replaced(given, models=[model]))
    assert not fits.ok
    assert "cpu" in fits.reason or "CUDA" in fits.reason


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", sorted(set(NAMES) - ON_THIS_MACHINE_ONLY))
def test_edits_are_made_with_and_without_known_places(name):
    module = technique(name)
    for options in options_of(module, FAULTY[name]):
        known = module.edits(FAULTY[name], options)
        unknown = module.edits(without_sites(FAULTY[name]), options)
        assert all(isinstance(edit, Edit) for edit in (*known, *unknown))
        places = {place for edit in known for place in sites(edit)}
        assert places <= sites(FAULTY[name].profile), "a place that the profile does not name"
        assert not [place for edit in unknown for place in sites(edit)]


def sites(found: object) -> set[Site]:
    """Every recorded place in a record, however deep."""
    if isinstance(found, Site):
        return {found}
    if isinstance(found, list | tuple):
        return {place for one in found for place in sites(one)}
    if isinstance(found, dict):
        return sites(tuple(found.values()))
    if isinstance(found, msgspec.Struct):
        return sites(tuple(getattr(found, name) for name in found.__struct_fields__))
    if dataclasses.is_dataclass(found):
        return sites(tuple(getattr(found, one.name) for one in dataclasses.fields(found)))
    return set()


def without_sites(given: Context) -> Context:
    profile = given.profile
    nothing = {
        f: None for f in profile.settings.__struct_fields__
        if isinstance(getattr(profile.settings, f), Site)
    }  # fmt: skip
    return replaced(
        given,
        models=[replace(m, forward_site=None) for m in profile.models],
        optimizers=[replace(o, site=None, step_site=None) for o in profile.optimizers],
        loaders=[replace(one, site=None) for one in profile.loaders],
        settings=replace(profile.settings, **nothing),
        habits={name: replace(habit, site=None) for name, habit in profile.habits.items()},
        hot_lines=[],
        unused_graphs=[],
        environment=replace(profile.environment, command=["-m", "package"]),
    )


def test_autocast_takes_the_place_of_float16_on_a_cpu():
    given = context(
        settings={"autocast_dtype": "float16"}, operators={"aten::mm": 0.9}, dtype="float16"
    )
    bf16 = technique("bf16-autocast")
    assert bf16.applies(given).ok
    assert bf16.predict(given, {}).high > 5


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"aten::gelu": 0.9}, "no float32 matmuls to speak of"),
        ({}, "whether there are float32 matmuls was not looked at"),
    ],
)
def test_what_was_not_looked_at_is_not_called_absent(seen: dict[str, float], reason: str):
    given = context(settings={"autocast_dtype": None}, operators=seen, dtype="float32")
    if not seen:
        given = replaced(given, operators=[])
    assert technique("bf16-autocast").applies(given).reason == reason


FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"


def attending(keys: int) -> Context:
    """A CPU script in float32 that attends to so many keys a sixth of its time."""
    given = context(
        settings={"autocast_dtype": None},
        operators={"aten::mm": 0.6, FLASH: 0.16},
        dtype="float32",
        limits=ceilings(bf16=8e11),
    )
    shape = f"[8,4,{keys},32]"
    shaped = [
        replace(op, shapes=f"{shape},{shape},{shape}") if op.name == FLASH else op
        for op in given.profile.operators
    ]
    return replaced(given, operators=shaped)


@pytest.mark.parametrize("keys", [16, 64, 128])
def test_short_attention_on_a_cpu_is_first_tried_outside_of_autocast(keys):
    given, bf16 = attending(keys), technique("bf16-autocast")
    assert options_of(bf16, given) == [{"attention": "float32"}, {}]
    apart, along = (bf16.predict(given, options) for options in options_of(bf16, given))
    assert apart.low > along.low
    assert apart.low * apart.high > along.low * along.high
    first = bf16.edits(given, {"attention": "float32"})[0]
    assert "attention_in_float32" in first.code


@pytest.mark.parametrize("name", ["bf16-autocast", "matmul-precision"])
def test_small_matmuls_on_a_cpu_are_not_foretold_to_gain_from_fewer_bits(name):
    """Each takes 10 µs in float32, and a small one in bfloat16 twice that."""
    given = FAULTY[name]
    assert given.ceilings is not None
    slow = {"bf16": 2e-5, "fp32_medium": 2e-5}
    limits = replace(given.ceilings, matmul_floor_seconds=slow, dispatch_autograd_seconds=1e-6)
    calls = 6000.0  # of the 60 ms that they take
    for each, least, most in ((calls, 0.0, 1.0), (calls / 1000, 1.2, 2.0)):
        small = [replace(op, calls=each) for op in given.profile.operators]
        profile = replace(given.profile, operators=small)
        context = Context(profile=profile, ceilings=limits)
        gain = technique(name).predict(context, options_of(technique(name), context)[0])
        assert gain.low <= gain.high
        assert least < gain.high < most, each


def test_matmuls_that_memory_holds_up_are_foretold_to_lose_by_casts_on_a_cpu():
    """Each moves as many bytes as memory does in its time: casts move half as many for each."""
    given, bf16 = FAULTY["bf16-autocast"], technique("bf16-autocast")
    assert given.ceilings is not None
    rate = given.ceilings.bandwidth_bytes_per_second
    held_up = [replace(op, bytes=op.seconds * rate) for op in given.profile.operators]
    large = [replace(op, bytes=0.01 * op.seconds * rate) for op in given.profile.operators]
    assert bf16.predict(replaced(given, operators=held_up), {}).low < 0.7
    assert bf16.predict(replaced(given, operators=large), {}).low > 1.0


def test_compile_is_foretold_to_lose_where_calls_are_short_and_nowhere_on_a_gpu():
    given, compile_ = FAULTY["compile"], technique("compile")
    assert given.ceilings is not None
    limits = replace(given.ceilings, dispatch_autograd_seconds=1.2e-6)
    given = Context(profile=given.profile, ceilings=limits)
    often = [replace(one, calls_per_step=1000.0) for one in given.profile.models]
    assert compile_.predict(given, {"mode": "default"}).low > 1.0
    assert compile_.predict(replaced(given, models=often), {"mode": "default"}).high < 1.0
    on_a_gpu = [replace(one, device="cuda:0") for one in often]
    assert compile_.predict(replaced(given, models=on_a_gpu), {"mode": "default"}).low > 1.0


def test_random_numbers_are_not_foretold_to_be_fused():
    given = context(operators={"aten::gelu": 0.5, "aten::mm": 0.45})
    draws = context(operators={"aten::bernoulli_": 0.5, "aten::mm": 0.45})
    fused, drawn = (
        technique("compile").predict(one, {"mode": "default"}).high for one in (given, draws)
    )
    assert fused > 1.4
    assert drawn < 1.1


@pytest.mark.parametrize("keys", [512, 4096])
def test_long_attention_goes_to_bfloat16_with_the_rest(keys):
    given, bf16 = attending(keys), technique("bf16-autocast")
    assert options_of(bf16, given) == [{}]
    assert bf16.predict(given, {}).high > 2.5


def test_float16_is_left_to_gpus_without_bfloat16():
    given = FAULTY["fp16-autocast"]
    limits = given.ceilings
    assert limits is not None
    fast = {**limits.matmul_flops_per_second, "bf16": 8e11}
    with_bf16 = Context(
        profile=given.profile, ceilings=replace(limits, matmul_flops_per_second=fast)
    )
    assert "bfloat16 is as fast" in technique("fp16-autocast").applies(with_bf16).reason


def test_attention_written_by_hand_is_for_one_technique_and_a_librarys_for_the_other():
    by_hand, by_a_library = FAULTY["fused-attention"], FAULTY["attention-backend"]
    reason = technique("attention-backend").applies(by_hand).reason
    assert "model.py:3 is written out step by step: that is for fused-attention" in reason
    assert "in a library" in technique("fused-attention").applies(by_a_library).reason


def test_attention_in_compiled_code_is_left_to_the_compiler():
    given = FAULTY["fused-attention"]
    compiled = [replace(model, compiled=True) for model in given.profile.models]
    fits = technique("fused-attention").applies(replaced(given, models=compiled))
    assert fits.reason == "compiled code does not come by here, and fuses its own"


def test_attention_with_dropout_is_left_on_a_cpu_which_has_no_kernel_for_it():
    given = FAULTY["attention-backend"]
    weights = replace(given.profile.operators[0], name="aten::_safe_softmax", shapes="[2,4,8,8]")
    dropout = replace(weights, name="aten::bernoulli_")
    module = technique("attention-backend")
    assert module.applies(replaced(given, operators=[weights])).ok
    reason = module.applies(replaced(given, operators=[weights, dropout])).reason
    assert reason == "attention with dropout has no fused kernel on a CPU"


def test_checkpointing_stays_where_memory_is_short():
    given = FAULTY["no-checkpointing"]
    full = replaced(given, peak_memory_bytes=8 << 30, device_memory_bytes=10 << 30)
    assert technique("no-checkpointing").applies(full).reason.startswith("80% of the device")


def test_shapes_that_change_from_step_to_step_compile_with_dynamic_shapes():
    given = FAULTY["compile"]
    odd = [replace(op, calls=1 / 3) for op in given.profile.operators]
    for options in options_of(technique("compile"), replaced(given, operators=odd)):
        assert options["dynamic"] is True
    assert "dynamic" not in options_of(technique("compile"), given)[0]


def test_compile_is_not_offered_twice():
    given = FAULTY["compile"]
    compiled = [replace(given.profile.models[0], compiled=True)]
    fits = technique("compile").applies(replaced(given, models=compiled))
    assert fits.reason == "the script compiles already"


@pytest.mark.parametrize("name", ["compile", "onnx-runtime", "openvino", "aot-inductor"])
def test_a_torchscript_program_is_given_to_no_compiler(name: str):
    given = FAULTY["compile"]
    scripted = [replace(given.profile.models[0], scripted=True)]
    fits = technique(name).applies(replaced(given, models=scripted, kind="inference"))
    assert "TorchScript program" in fits.reason


def test_as_many_workers_as_the_step_needs_are_tried_first():
    given = FAULTY["loader-workers"]
    settings = replace(given.profile.settings, cpu_count=16)
    first = options_of(technique("loader-workers"), replaced(given, settings=settings))[0]
    assert first["num_workers"] == 2  # 50 ms per batch, 50 ms for the rest of the step


@pytest.mark.parametrize(("computing", "harm"), [(0.05, True), (0.001, False)])
def test_workers_that_compute_on_the_steps_own_two_cores_may_do_harm(computing, harm):
    given = FAULTY["loader-workers"]
    loaders = [replace(one, fetch_cpu_seconds=computing) for one in given.profile.loaders]
    settings = replace(given.profile.settings, cpu_count=2)
    context = replaced(given, loaders=loaders, settings=settings)
    gain = technique("loader-workers").predict(context, {"num_workers": 2})
    assert (gain.low < 1) is harm
    assert gain.high > 1.2


def test_too_many_workers_are_offered_fewer():
    given = context(loader={"num_workers": 16, "wait_seconds": 0.05}, phases={"data": 0.4})
    settings = options_of(technique("loader-workers"), given)
    assert [options["num_workers"] for options in settings] == [2, 1]


def test_one_thread_per_core_is_chosen_by_the_siblings(tmp_path):
    from ridgeline.techniques.thread_affinity import one_per_core

    for number, siblings in {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}.items():
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert one_per_core({0, 1, 4, 5}, tmp_path) == {0, 1}
    assert one_per_core({4, 5}, tmp_path) == {4, 5}
    assert one_per_core({7, 8}, tmp_path) == {7, 8}


# -- applying and taking back -------------------------------------------------------------------


def state_of_torch() -> dict[str, object]:
    """Everything that a technique may patch or switch, by name."""
    import torch
    from torch._inductor import config
    from torch.nn import attention
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import optimizer
    from torch.utils import checkpoint

    holders = {
        "gc": gc, "torch": torch, "cuda": torch.cuda, "autograd": torch.autograd,
        "Tensor": torch.Tensor, "Optimizer": torch.optim.Optimizer, "Module": torch.nn.Module,
        "AdamW": torch.optim.AdamW, "DDP": DistributedDataParallel, "checkpoint": checkpoint,
        "attention": attention, "profiler": torch.profiler.profile,
        "legacy": torch.autograd.profiler.profile,
    }  # fmt: skip
    state: dict[str, object] = {
        f"{holder}.{name}": value
        for holder, thing in holders.items()
        for name, value in vars(thing).items()
        if callable(value) or isinstance(value, staticmethod)
    }
    state |= {
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "gc": (gc.isenabled(), gc.get_threshold()),
        "random": config.fallback_random,
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "hooks": dict(optimizer._global_optimizer_pre_hooks),
        "affinity": os.sched_getaffinity(0),
    }
    return {
        name: value.__func__ if isinstance(value, staticmethod) else value
        for name, value in state.items()
    }


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", NAMES)
def test_taking_back_leaves_torch_and_the_points_as_they_were(name):
    import torch

    module = technique(name)
    settings = options_of(module, FAULTY[name]) if name in FAULTY else [{}]
    for options in settings:
        points = Points()
        model = torch.nn.Linear(2, 2)
        torch.optim.AdamW(model.parameters())  # torch patches the class when it is first used
        before = state_of_torch()
        undo = module.apply(points, options)
        try:
            optimizer = torch.optim.AdamW(model.parameters())
            for prepare in points.on_model:
                prepare(model)
            for prepare in points.on_optimizer:
                prepare(optimizer)
            for after in points.after_step * 3:
                after()
        finally:
            undo()
        for point in ("on_optimizer", "on_model", "on_loader", "around_forward", "after_forward",
                      "on_batch", "around_backward", "after_step", "wrap_loader"):  # fmt: skip
            assert getattr(points, point) == [], point
        assert not optimizer.param_groups[0]["fused"]
        assert model._compiled_call_impl is None
        found = state_of_torch()
        kept = {key for key in before if found[key] is before[key] or found[key] == before[key]}
        assert set(before) - kept == set()


# -- on a real script, under interception --------------------------------------------------------

BIT_EQUAL, ROUNDING, STATISTICAL, FLAT = 0.0, 2e-5, 3e-2, None
"""Relative difference of losses that a technique may cause; None: only that it trains."""

(_FOLLOWS,) = options_of(technique("no-unused-graph"), FAULTY["no-unused-graph"])
FOLLOWS = {"no-unused-graph": {**_FOLLOWS, "lines": os.path.relpath(str(_FOLLOWS["lines"]))}}
"""The line of habits.py as a process that started here calls it."""
REHEARSALS: dict[str, tuple[str, Case, float | None]] = {
    "full checkpointing": (
        "activation-checkpointing",
        Case((), {"activation-checkpointing": {"kind": "full", "block": "Block"}}),
        BIT_EQUAL,
    ),
    "selective checkpointing": (
        "activation-checkpointing",
        Case((), {"activation-checkpointing": {"kind": "selective", "block": "Block"}}),
        BIT_EQUAL,
    ),
    "fused attention": (
        "attention-backend",
        Case(("--math",), {"attention-backend": {}}),
        ROUNDING,
    ),
    "attention by hand": (
        "fused-attention",
        Case(("--by-hand",), {"fused-attention": {"file": "habits.py", "function": "forward"}}),
        ROUNDING,
    ),
    "bfloat16": ("bf16-autocast", Case((), {"bf16-autocast": {}}), STATISTICAL),
    "bfloat16 but attention": (
        "bf16-autocast",
        Case((), {"bf16-autocast": {"attention": "float32"}}),
        STATISTICAL,
    ),
    "channels-last": ("channels-last", Case((), {"channels-last": {}}), ROUNDING),
    "compressed rows": ("compressed-rows", Case(("--graph",), {"compressed-rows": {}}), ROUNDING),
    "loss in chunks": (
        "chunked-cross-entropy",
        Case(("--classes", "1024"), {"chunked-cross-entropy": {}}),
        ROUNDING,
    ),
    "compile with dropout": (
        "compile",
        Case(("--dropout", "0.1"), {"compile": {"mode": "default"}}),
        ROUNDING,
    ),
    "compile of blocks": (
        "compile",
        Case((), {"compile": {"mode": "default", "regional": "Block"}}),
        ROUNDING,
    ),
    "compile under DDP": (
        "compile",
        Case(("--ddp",), {"compile": {"mode": "default"}}, 2),
        ROUNDING,
    ),
    "CUDA graphs, their twin": ("cuda-graphs", Case((), {"cuda-graphs": {}}), ROUNDING),
    "cuDNN autotuning": ("cudnn-benchmark", Case((), {"cudnn-benchmark": {}}), BIT_EQUAL),
    "bucket size": (
        "ddp-buckets",
        Case(("--ddp",), {"ddp-buckets": {"bucket_mib": 1}}, 2),
        ROUNDING,
    ),
    "bucket view": ("ddp-bucket-view", Case(("--ddp",), {"ddp-bucket-view": {}}, 2), ROUNDING),
    "no sync": (
        "ddp-no-sync",
        Case(("--ddp", "--accumulate", "3", "--clip"), {"ddp-no-sync": {}}, 2),
        ROUNDING,
    ),
    "no sync with a short cycle": (
        "ddp-no-sync",
        Case(
            ("--ddp", "--accumulate", "3", "--flush", "--epoch-steps", "4"), {"ddp-no-sync": {}}, 2
        ),
        ROUNDING,
    ),
    "no search": ("ddp-no-unused", Case(("--ddp", "--unused"), {"ddp-no-unused": {}}, 2), ROUNDING),
    "static graph": (
        "ddp-static-graph",
        Case(("--ddp", "--unused"), {"ddp-static-graph": {}}, 2),
        ROUNDING,
    ),
    "determinism off": (
        "determinism-off",
        Case(("--deterministic",), {"determinism-off": {}}),
        ROUNDING,
    ),
    "lists of tensors": (
        "foreach-optimizer",
        Case(("--optimizer", "RMSprop"), {"foreach-optimizer": {}}),
        ROUNDING,
    ),
    "float16": ("fp16-autocast", Case(("--clip",), {"fp16-autocast": {}}), STATISTICAL),
    "float16 accumulated": (
        "fp16-autocast",
        Case(("--accumulate", "2"), {"fp16-autocast": {}}),
        STATISTICAL,
    ),
    "fused kernels": ("fused-kernels", Case(("--norms",), {"fused-kernels": {}}), ROUNDING),
    "fused optimizer": ("fused-optimizer", Case((), {"fused-optimizer": {}}), ROUNDING),
    "frozen collector": ("gc-freeze", Case((), {"gc-freeze": {}}), BIT_EQUAL),
    "inference mode": ("inference-mode", Case(("--infer",), {"inference-mode": {}}), BIT_EQUAL),
    "ONNX Runtime": ("onnx-runtime", Case(("--infer",), {"onnx-runtime": {}}), ROUNDING),
    "OpenVINO": ("openvino", Case(("--infer",), {"openvino": {}}), ROUNDING),
    "AOTInductor": ("aot-inductor", Case(("--infer",), {"aot-inductor": {}}), ROUNDING),
    "workers": (
        "loader-workers",
        Case((), {"loader-workers": {"num_workers": 1, "prefetch_factor": 2}}),
        BIT_EQUAL,
    ),
    "freed memory kept": ("malloc-retain", Case((), {"malloc-retain": {}}), BIT_EQUAL),
    "oneDNN bfloat16": (
        "matmul-precision",
        Case((), {"matmul-precision": {"precision": "medium"}}),
        STATISTICAL,
    ),
    "anomaly mode off": ("no-anomaly", Case(("--anomaly",), {"no-anomaly": {}}), BIT_EQUAL),
    "arguments unchecked": (
        "no-argument-checks",
        Case(("--drawn",), {"no-argument-checks": {}}),
        BIT_EQUAL,
    ),
    "checkpointing off": (
        "no-checkpointing",
        Case(("--checkpoint", "--dropout", "0.1"), {"no-checkpointing": {}}),
        BIT_EQUAL,
    ),
    "empty_cache off": (
        "no-empty-cache",
        Case(("--empty-cache",), {"no-empty-cache": {}}),
        BIT_EQUAL,
    ),
    "collect off": ("no-forced-gc", Case(("--collect",), {"no-forced-gc": {}}), BIT_EQUAL),
    "profiler off": ("no-profiler", Case(("--profiler",), {"no-profiler": {}}), BIT_EQUAL),
    "persistent workers": (
        "persistent-workers",
        Case(("--workers", "1", "--epoch-steps", "3"), {"persistent-workers": {}}),
        FLAT,
    ),
    "samples kept": (
        "samples-in-memory",
        Case(("--epoch-steps", "3"), {"samples-in-memory": {"dataset": "Items"}}),
        BIT_EQUAL,
    ),
    "coins of sixteen bits": (
        "sixteen-bit-dropout",
        Case(("--dropout", "0.1"), {"sixteen-bit-dropout": {}}),
        FLAT,
    ),
    "no graph for nobody": ("no-unused-graph", Case(("--follows",), FOLLOWS), BIT_EQUAL),
    "slices gathered": (
        "gathered-slices",
        Case(("--slices",), {"gathered-slices": {"file": "habits.py", "function": "stacked"}}),
        BIT_EQUAL,
    ),
    "gradients dropped": ("set-to-none", Case(("--in-place",), {"set-to-none": {}}), BIT_EQUAL),
    "two threads": (
        "thread-count",
        Case(("--threads", "1"), {"thread-count": {"num_threads": 2}}),
        ROUNDING,
    ),
}
LONG = {"compile under DDP", "compile of blocks", "AOTInductor"}
"""Compiled for many seconds; "compile with dropout" stands for them."""
QUICK = {"bfloat16", "bfloat16 but attention", "fused optimizer"}
"""A precision, what is left alone, and a constructor's argument; the others are rehearsed by
`make test-all`."""
NO_EFFECT = {
    "pinned-memory": Case((), {"pinned-memory": {}}),
    "device-prefetch": Case((), {"device-prefetch": {}}),
    "no-anomaly": Case((), {"no-anomaly": {}}),
    "no-argument-checks": Case((), {"no-argument-checks": {}}),
    "no-unused-graph": Case((), FOLLOWS),
    "no-checkpointing": Case((), {"no-checkpointing": {}}),
    "no-forced-gc": Case((), {"no-forced-gc": {}}),
    "no-profiler": Case((), {"no-profiler": {}}),
    "set-to-none": Case((), {"set-to-none": {}}),
    "determinism-off": Case((), {"determinism-off": {}}),
    "thread-count": Case(("--threads", "1"), {"thread-count": {"num_threads": 1}}),
    "persistent-workers": Case((), {"persistent-workers": {}}),
    "foreach-optimizer": Case((), {"foreach-optimizer": {}}),
    "attention-backend": Case((), {"attention-backend": {}}),
    "chunked-cross-entropy": Case((), {"chunked-cross-entropy": {}}),
    "compressed-rows": Case((), {"compressed-rows": {}}),
    "fused-attention": Case((), {"fused-attention": {"file": "habits.py", "function": "forward"}}),
    "fused-kernels": Case((), {"fused-kernels": {}}),
    "gathered-slices": Case((), {"gathered-slices": {"file": "habits.py", "function": "main"}}),
    "sixteen-bit-dropout": Case((), {"sixteen-bit-dropout": {}}),
    "ddp-no-sync": Case(("--ddp",), {"ddp-no-sync": {}}, 2),
}
OVERFLOW = Case(("--steps", "8"), {"fp16-autocast": {"initial_scale": 2.0**40}})
TOGETHER = Case(
    ("--anomaly", "--collect", "--checkpoint", "--in-place", "--math", "--threads", "1"),
    {
        "no-anomaly": {}, "no-forced-gc": {}, "no-checkpointing": {}, "set-to-none": {},
        "attention-backend": {}, "thread-count": {"num_threads": 2}, "fused-optimizer": {},
        "channels-last": {}, "gc-freeze": {}, "compile": {"mode": "default"},
        "loader-workers": {"num_workers": 1},
    },
)  # fmt: skip


def plain(case: Case) -> Case:
    return Case(case.words, {}, case.ranks)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> dict[str, Outcome]:
    """Every rehearsal that this run asks for and its plain twin, all from one process."""

    def asked_of(test: Callable[..., None]) -> set[str]:
        return {i.callspec.params["name"] for i in request.session.items if i.obj is test}

    effective = asked_of(test_it_takes_effect_and_the_script_trains_as_its_card_says)
    in_vain = asked_of(test_what_changes_nothing_does_not_claim_to)
    cases = {
        name: REHEARSALS[name][1] for name in effective | {"bfloat16", "bfloat16 but attention"}
    }
    cases |= {f"{name} in vain": NO_EFFECT[name] for name in in_vain}
    return rehearsed(cases | {"overflow": OVERFLOW}, tmp_path_factory)


def rehearsed(cases: dict[str, Case], factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    twins = {" ".join(map(str, (c.words, c.ranks))): plain(c) for c in cases.values()}
    return rehearse(cases | twins, factory.mktemp("rehearsals"))


def twin_of(outcomes: dict[str, Outcome], case: Case) -> Outcome:
    return outcomes[" ".join(map(str, (case.words, case.ranks)))]


@pytest.mark.sweep(*QUICK)
@pytest.mark.parametrize("name", sorted(set(REHEARSALS) - LONG))
def test_it_takes_effect_and_the_script_trains_as_its_card_says(name, outcomes):
    check_equivalence(name, outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG))
def test_it_trains_as_its_card_says_at_length(name, tmp_path_factory):
    check_equivalence(name, rehearsed({name: REHEARSALS[name][1]}, tmp_path_factory))


def test_attention_that_stays_in_float32_is_not_rounded(outcomes):
    twin, along = outcomes[" ".join(map(str, ((), 1)))], outcomes["bfloat16"]
    apart = outcomes["bfloat16 but attention"]
    assert "attention in float32" in apart.applied["bf16-autocast"]
    assert apart.losses != along.losses != twin.losses


def check_equivalence(name: str, outcomes: dict[str, Outcome]) -> None:
    technique_name, case, tolerance = REHEARSALS[name]
    outcome, twin = outcomes[name], twin_of(outcomes, case)
    assert not twin.error, twin.error
    assert not outcome.error, outcome.error
    assert list(outcome.applied) == [technique_name]
    assert len(outcome.losses) == len(twin.losses) > 4
    assert outcome.facts["steps"] == twin.facts["steps"]
    if tolerance is not None:
        assert outcome.losses == pytest.approx(twin.losses, rel=tolerance, abs=0)
    if tolerance == BIT_EQUAL:
        assert outcome.weight == twin.weight
    promised = technique(technique_name).CARD.equivalence
    if promised == "bit-equal":
        assert tolerance == BIT_EQUAL


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", NO_EFFECT)
def test_what_changes_nothing_does_not_claim_to(name, outcomes):
    outcome = outcomes[f"{name} in vain"]
    assert not outcome.error, outcome.error
    assert outcome.applied == {}
    assert outcome.losses == twin_of(outcomes, NO_EFFECT[name]).losses


def test_every_technique_is_rehearsed_or_named_as_one_for_other_machines():
    rehearsed = {name for name, _, _ in REHEARSALS.values()}
    alone = {
        "length-buckets",
        "micro-batch",
        "no-adjoint",
        "passive-threads",
        "thread-binding",
    }  # they have tests of their own
    elsewhere = {"device-prefetch", "nccl-settings", "pinned-memory", "thread-affinity"}
    assert set(NAMES) - rehearsed == alone | elsewhere


def test_steps_that_overflow_in_float16_are_left_out(outcomes):
    outcome = outcomes["overflow"]
    assert not outcome.error, outcome.error
    words = outcome.applied["fp16-autocast"]
    assert "0 step(s) left out" not in words
    assert all(loss == loss for loss in outcome.losses)  # noqa: PLR0124 - not NaN


@pytest.mark.slow
def test_a_whole_stack_lives_together(tmp_path_factory):
    outcomes = rehearsed({"together": TOGETHER}, tmp_path_factory)
    outcome, twin = outcomes["together"], twin_of(outcomes, TOGETHER)
    assert not outcome.error, outcome.error
    assert set(outcome.applied) == set(TOGETHER.stack)
    assert outcome.losses == pytest.approx(twin.losses, rel=1e-4)
    assert outcome.facts["threads"] == 2
    assert not outcome.facts["anomaly"]
    assert not outcome.facts["recomputed"]
    assert outcome.facts["gc_forced"] < len(twin.losses)  # torch itself may collect


# -- parts that need no device --------------------------------------------------------------------


class ToMeta:
    """A mover that needs no GPU."""

    def __init__(self) -> None:
        self.waited = 0

    def move(self, tensor, device):
        return tensor.to(device)

    def wait(self, tensors) -> None:
        self.waited += 1


def test_the_next_batch_is_moved_ahead_where_the_script_moves_it():
    import torch

    from ridgeline.techniques.device_prefetch import MoveWatch, Prefetcher

    batches = [(torch.full((2,), float(i)), {"label": torch.tensor(i)}) for i in range(4)]
    fetched = []

    def source():
        for batch in batches:
            fetched.append(batch)
            yield batch

    watch = MoveWatch()
    watch.install()
    told = []
    try:
        loader = object()
        iterator = Prefetcher(source(), watch.positions(loader), watch, ToMeta(), told.append)
        seen = []
        for x, rest in iterator:
            seen.append((x.device.type, int(rest["label"]), len(fetched)))
            x.to("meta")
    finally:
        watch.remove()
    assert [label for _, label, _ in seen] == [0, 1, 2, 3]
    assert [device for device, _, _ in seen] == ["cpu", "meta", "meta", "meta"]
    assert [count for _, _, count in seen] == [1, 3, 4, 4]  # one ahead from the second batch on
    assert told == [1, 1, 1]
    with pytest.raises(StopIteration):
        next(iterator)


def test_workers_are_not_given_to_a_stream():
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    points = Points()
    technique("loader-workers").apply(points, {"num_workers": 2})
    arguments: dict[str, Any] = {"dataset": Stream()}
    points.on_loader[0](arguments)
    assert list(arguments) == ["dataset"]
    assert points.effects == {}


@pytest.mark.slow
def test_a_hugging_face_model_is_switched_to_fused_attention():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=8, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    points = Points()
    undo = technique("attention-backend").apply(points, {})
    points.on_model[0](model)
    assert model.config._attn_implementation == "sdpa"
    assert "attention-backend" in points.effects
    undo()
    assert model.config._attn_implementation == "eager"


def test_optimizers_first_used_under_loss_scaling_are_left_as_torch_makes_them():
    import torch

    class Own(torch.optim.SGD):
        def step(self):
            super().step()

    undo = technique("fp16-autocast").apply(Points(), {})
    Own(torch.nn.Linear(2, 2).parameters())
    assert "guard" in Own.step.__code__.co_qualname
    undo()
    assert "guard" not in Own.step.__code__.co_qualname
    assert Own.step.hooked


def test_momenta_from_a_checkpoint_follow_the_weights_to_channels_last():
    import torch

    points = Points()
    model = torch.nn.Conv2d(3, 4, 3)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.randn(1, 3, 8, 8)).sum().backward()
    optimizer.step()
    before = optimizer.state[model.weight]["exp_avg"].clone()
    undo = technique("channels-last").apply(points, {})
    points.on_model[0](model)
    points.on_optimizer[0](optimizer)
    after = optimizer.state[model.weight]["exp_avg"]
    strides = model.weight.stride()
    undo()
    assert after.stride() == strides != before.stride()
    assert torch.equal(after, before)


@pytest.mark.parametrize("name", sorted(CUDA_ONLY))
def test_on_a_gpu_without_the_fault_it_says_what_is_missing(name):
    fits = technique(name).applies(context(model=CUDA))
    assert not fits.ok
    assert fits.reason


def test_causes_and_cures_know_each_other():
    from ridgeline.diagnose.rules import all_rules

    causes = {cause for rule in all_rules().values() for cause in rule.CAUSES}
    named = {cause for name in NAMES for cause in technique(name).CARD.cures}
    assert named - causes == set()


def test_no_technique_prints():
    folder = Path(technique("compile").__file__).parent  # type: ignore[attr-defined]
    assert not [path for path in folder.glob("*.py") if "print(" in path.read_text()]
