"""Launch arguments: what they say multiplies out, parses where the parser is at hand, and a
layout that a framework cannot express is never written in its words."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.plan.tasks import a_mixture, a_model, a_space, a_task

from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models.presets import preset
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.enumeration import chunks
from ridgeline.plan.training.launch_arguments import (
    FRAMEWORKS,
    deepspeed,
    fsdp,
    launches,
    megatron,
    nemo,
)
from ridgeline.plan.training.launch_arguments import torchtitan as titan
from ridgeline.plan.training.launch_arguments.request import LaunchRequest
from ridgeline.plan.training.task import find
from ridgeline.records.layout import Layout


def request(model: ModelSpec | None = None, num: int = 16, **layout: object) -> LaunchRequest:
    return LaunchRequest(
        model=model or a_model(),
        layout=Layout(**layout),  # type: ignore[arg-type]
        cluster=parse_cluster(f"{num}xH100"),
        seq=2048,
    )


def options(command: str) -> dict[str, str]:
    """`--name value` pairs and flags of a command."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            following = words[index + 1] if index + 1 < len(words) else "--"
            found[name] = value or ("" if following.startswith("--") else following)
    return found


def configured(written: Any) -> SimpleNamespace:
    """What the torchtitan configuration sets, run against stand-ins for its classes."""
    source = written.files["ridgeline_plan.py"]
    body = "\n".join(line for line in source.splitlines() if not line.startswith(("from ", "#")))
    config = SimpleNamespace(
        parallelism=SimpleNamespace(), training=SimpleNamespace(), compile=SimpleNamespace()
    )
    full = SimpleNamespace(Config=lambda: "full")
    names: dict[str, Any] = {"base": lambda: config, "FullAC": full, "SelectiveAC": full}
    exec(compile(body, "ridgeline_plan.py", "exec"), names)  # noqa: S102  our own text
    assert names["planned"]() is config
    return config


SPACE = [
    one.at(index)
    for model in (a_model(), a_mixture())
    for one in chunks(a_space(model=model), 100_000)
    for index in range(0, len(one), 13)
]


def settings(command: str) -> dict[str, str]:
    """What a command of NeMo-Run sets."""
    words = shlex.split(command.replace("\\\n", " "))
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.NAME)
def test_what_a_framework_can_run_is_written_and_counts_every_device(framework: Any) -> None:
    written = 0
    for layout in SPACE:
        model = a_mixture() if layout.ep > 1 or layout.etp > 1 else a_model()
        asked = LaunchRequest(
            model=model, layout=layout, cluster=parse_cluster("16xH100"), seq=2048
        )
        if framework.cannot(asked):
            continue
        written += 1
        text = framework.write(asked)
        given = options(text.command)
        if framework is titan:
            sizes = configured(text).parallelism
            ranks = sizes.data_parallel_replicate_degree * sizes.data_parallel_shard_degree
            ranks *= sizes.context_parallel_degree * sizes.tensor_parallel_degree
            assert ranks * sizes.pipeline_parallel_degree == 16
        if framework is megatron:
            other = int(given["--tensor-model-parallel-size"])
            other *= int(given["--pipeline-model-parallel-size"])
            other *= int(given["--context-parallel-size"])
            assert 16 % other == 0
            assert (
                int(given["--global-batch-size"]) % (16 // other * int(given["--micro-batch-size"]))
                == 0
            )
        if framework is nemo:
            said = settings(text.command)
            sizes = ("tensor_model", "pipeline_model", "context")
            other = 1
            for size in sizes:
                other *= int(said[f"trainer.strategy.{size}_parallel_size"])
            assert int(said["trainer.num_nodes"]) * int(said["trainer.devices"]) == 16
            whole = 16 // other * int(said["data.micro_batch_size"])
            assert int(said["data.global_batch_size"]) % whole == 0
        if framework is deepspeed:
            content = json.loads(text.files["ds_config.json"])
            ranks = 16 // content.get("tensor_parallel", {"autotp_size": 1})["autotp_size"]
            per_rank = content["train_micro_batch_size_per_gpu"]
            per_rank *= content["gradient_accumulation_steps"]
            assert ranks * per_rank == content["train_batch_size"]
        if framework is fsdp:
            assert given["--num_processes"] == "16"
    assert written > 10


def known(name: str) -> set[str]:
    """Names that a framework has, with their source in the file's first lines."""
    text = (Path(__file__).parent / "options" / f"{name}.txt").read_text()
    return {line for line in text.splitlines() if not line.startswith("#")}


def keys(content: dict[str, Any]) -> set[str]:
    below = [keys(value) for value in content.values() if isinstance(value, dict)]
    return set(content).union(*below)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("framework", [titan, megatron, nemo, deepspeed], ids=lambda one: one.NAME)
def test_every_name_that_is_written_is_one_that_the_framework_has(framework: Any) -> None:
    names = known(framework.NAME)
    used: set[str] = set()
    for layout in SPACE:
        model = a_mixture() if layout.ep > 1 or layout.etp > 1 else a_model()
        asked = LaunchRequest(
            model=model, layout=layout, cluster=parse_cluster("16xH100"), seq=2048
        )
        if framework.cannot(asked):
            continue
        written = framework.write(asked)
        if framework is megatron:
            command = written.command.partition("pretrain_gpt.py")[2]
            used |= set(re.findall(r"(?:^|\s)(--[a-z0-9-]+)", command))
        if framework is nemo:
            used |= {name.rpartition(".")[2] for name in settings(written.command)}
        if framework is titan:
            module = written.files["ridgeline_plan.py"]
            used |= set(re.findall(r"config\.\w+\.(\w+) =", module))
        if framework is deepspeed:
            used |= keys(json.loads(written.files["ds_config.json"]))
    assert len(used) > 10
    assert used - names == set()


@pytest.mark.parametrize(
    ("name", "recipe", "own"),
    [
        ("Mixtral-8x7B", "mixtral_8x7b", {"num_moe_experts": "8", "moe_router_topk": "2"}),
        ("Mistral-7B-v0.3", "mistral_7b", {"window_size": "None"}),
        ("Qwen2.5-7B", "qwen2_7b", {"kv_channels": "128"}),
    ],
)
def test_a_family_takes_its_own_recipe_of_nemo_and_every_size_is_set(
    name: str, recipe: str, own: dict[str, str]
) -> None:
    model = preset(name)
    layout = Layout(dp=8, fsdp=8, zero=1, pp=2, ep=8 if model.experts else 1, global_batch=32)
    asked = LaunchRequest(model=model, layout=layout, cluster=parse_cluster("16xH100"), seq=2048)
    assert nemo.cannot(asked) == []
    command = nemo.write(asked).command
    assert command.startswith(f"nemo llm pretrain --factory {recipe} ")
    said = {key.rpartition(".")[2]: value for key, value in settings(command).items()}
    assert own.items() <= said.items()
    assert said["virtual_pipeline_model_parallel_size"] == "None"
    assert said["num_layers"] == str(model.layers)
    assert set(said) <= known("nemo")


def test_nemo_has_no_recipe_of_other_mixtures() -> None:
    layout = Layout(dp=16, fsdp=16, zero=1, global_batch=32)
    asked = LaunchRequest(
        model=a_mixture(), layout=layout, cluster=parse_cluster("16xH100"), seq=2048
    )
    assert any("Mixtral's" in reason for reason in nemo.cannot(asked))


def test_the_accelerate_launcher_accepts_its_arguments() -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    parser = launch.launch_command_parser()
    checked = 0
    for layout in SPACE:
        asked = LaunchRequest(
            model=a_model(), layout=layout, cluster=parse_cluster("16xH100"), seq=2048
        )
        if fsdp.cannot(asked):
            continue
        text = fsdp.write(asked).command.replace("$NODE_RANK", "0").replace("$MASTER_ADDR", "h")
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        parsed = parser.parse_args(words[2:])
        assert parsed.training_script == "train.py"
        if layout.zero:
            assert parsed.use_fsdp
            assert parsed.fsdp_version == "2"
            assert (parsed.fsdp_reshard_after_forward == "true") == (layout.zero == 3)
        if getattr(parsed, "use_parallelism_config", False):
            sizes = [
                getattr(parsed, f"parallelism_config_{name}_size")
                for name in ("dp_replicate", "dp_shard", "tp", "cp")
            ]
            product = 1
            for size in sizes:
                product *= size
            assert product == 16
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_gets_no_layout_that_shards_over_some_of_its_data_parallel_ranks(
    zero: int,
) -> None:
    some = request(dp=16, fsdp=8, zero=zero, global_batch=32)
    assert [reason for reason in deepspeed.cannot(some) if "MiCS" in reason]
    assert deepspeed.cannot(request(dp=16, fsdp=16, zero=zero, global_batch=32)) == []


def test_megatron_gets_an_uneven_pipeline_as_a_layout_of_stages() -> None:
    uneven = request(a_model(layers=11), dp=4, pp=4, global_batch=32)
    text = options(megatron.write(uneven).command)["--pipeline-model-parallel-layout"]
    stages = text.removeprefix("E").removesuffix("L").split("|")
    assert [len(stage) for stage in stages] == [3, 3, 3, 2]
    even = options(megatron.write(request(dp=4, pp=4, global_batch=32)).command)
    assert "--pipeline-model-parallel-layout" not in even


def test_megatron_describes_a_mixture_of_experts() -> None:
    asked = request(a_mixture(), dp=16, ep=8, fsdp=8, zero=1, global_batch=32, precision="fp8")
    given = options(megatron.write(asked).command)
    assert given["--num-experts"] == "8"
    assert given["--expert-model-parallel-size"] == "8"
    assert given["--num-distributed-optimizer-instances"] == "2"
    assert given["--fp8-format"] == "hybrid"
    assert given["--num-query-groups"] == "4"


def test_deepspeed_gets_zero_offload_and_tensor_parallelism() -> None:
    asked = request(
        dp=8, fsdp=8, zero=3, tp=2, sp=True, global_batch=32, offload="optimizer+parameters"
    )
    content = deepspeed.configuration(asked)
    assert content["zero_optimization"]["stage"] == 3
    assert content["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert content["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert content["tensor_parallel"] == {"autotp_size": 2}
    assert content["bf16"] == {"enabled": True}


def test_deepspeed_gets_optimizer_schedule_and_checkpointing_of_the_recipe() -> None:
    tokens = 32 * 2048 * 5000.0
    asked = request(
        dp=16, fsdp=16, zero=3, global_batch=32, precision="fp16", recompute="full",
        offload="optimizer-on-disk",
    )  # fmt: skip
    short = deepspeed.configuration(asked)
    assert short["scheduler"]["type"] == "WarmupLR"
    assert short["scheduler"]["params"]["warmup_max_lr"] == short["optimizer"]["params"]["lr"]
    written = deepspeed.write(replace(asked, tokens=tokens))
    content = json.loads(written.files["ds_config.json"])
    assert content["optimizer"]["type"] == "AdamW"
    assert set(content["optimizer"]["params"]) == {"lr", "betas", "eps", "weight_decay"}
    assert content["scheduler"]["type"] == "WarmupCosineLR"
    assert content["scheduler"]["params"] == {
        "total_num_steps": 5000, "warmup_num_steps": 2000, "warmup_min_ratio": 0.0,
        "cos_min_ratio": 0.1, "warmup_type": "linear",
    }  # fmt: skip
    assert content["fp16"] == {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}
    assert content["activation_checkpointing"]["partition_activations"] is False
    assert content["zero_optimization"]["offload_optimizer"]["device"] == "nvme"
    assert "nvme_path is where" in written.command
    assert keys(content) - known("deepspeed") == set()


def test_deepspeed_gets_parameters_on_disk_with_buffers_that_hold_the_largest() -> None:
    asked = request(dp=2, fsdp=2, zero=3, global_batch=32, offload="all-on-disk")
    written = deepspeed.write(asked)
    content = json.loads(written.files["ds_config.json"])
    both = [content["zero_optimization"][f"offload_{one}"] for one in ("optimizer", "param")]
    assert [one["device"] for one in both] == ["nvme", "nvme"]
    assert both[1]["buffer_size"] * 2 >= asked.model.hidden * asked.model.vocab
    assert keys(content) - known("deepspeed") == set()


def test_torchtitan_gets_every_number_of_the_layout() -> None:
    asked = request(
        dp=2, fsdp=4, zero=1, tp=2, sp=True, pp=2, vpp=3, schedule="interleaved", cp=2,
        micro_batch=2, global_batch=32, recompute="full",
    )  # fmt: skip
    config = configured(titan.write(asked))
    assert config.parallelism.pipeline_parallel_schedule == "Interleaved1F1B"
    assert config.parallelism.pipeline_parallel_layers_per_stage == 2
    assert config.parallelism.num_pp_microbatches == 8
    assert config.parallelism.data_parallel_shard_degree == 2
    assert config.parallelism.fsdp_reshard_after_forward == "never"
    assert config.training.num_tokens_per_train_step == 32 * 2048
    assert config.training.num_tokens_per_microbatch_per_dp_rank == 2 * 2048
    assert config.activation_checkpoint == "full"


@pytest.mark.parametrize(
    ("name", "family", "base"),
    [
        ("Llama-3.1-405B", "llama", "llama3_405b"),
        ("Llama-3-8B", "llama", "llama3_8b"),
        ("Llama-33B", "llama", "llama3_debugmodel"),
        ("Qwen3-0.6B", "qwen3", "qwen3_0_6b"),
        ("Qwen3-30B-A3B", "qwen3_moe", "qwen3_30b_a3b"),
        ("DeepSeek-V3", "deepseek_v3", "deepseek_v3_671b"),
        ("Moonlight-16B-A3B", "deepseek_v3", "deepseek_v3_debugmodel"),
    ],
)
def test_torchtitan_starts_from_the_configuration_of_that_size(
    name: str, family: str, base: str
) -> None:
    text = titan.write(request(a_model(name=name, family=family), dp=16, global_batch=32))
    module = text.files["ridgeline_plan.py"]
    assert f"import {base} as base" in module
    assert ("stands in" in module) == base.endswith("debugmodel")


def test_a_rack_of_trays_is_launched_by_tray() -> None:
    layout = Layout(dp=72, global_batch=72)
    asked = LaunchRequest(
        model=a_model(), layout=layout, cluster=parse_cluster("72xGB200"), seq=2048
    )
    assert (asked.num_nodes, asked.per_node) == (18, 4)
    assert "--nnodes=18 --nproc_per_node=4" in megatron.write(asked).command


@pytest.mark.parametrize(
    ("framework", "layout", "reason"),
    [
        (deepspeed, {"dp": 4, "pp": 4}, "PipelineModule"),
        (fsdp, {"dp": 4, "pp": 4}, "no pipeline"),
        (megatron, {"dp": 4, "pp": 4, "schedule": "zero-bubble"}, "zero-bubble"),
        (titan, {"dp": 4, "pp": 4, "schedule": "zero-bubble"}, "zero-bubble"),
        (fsdp, {"dp": 16, "fsdp": 16, "zero": 3, "precision": "mxfp8"}, "mxfp8"),
        (deepspeed, {"dp": 16, "fsdp": 8, "zero": 1}, "all data-parallel ranks"),
        (deepspeed, {"dp": 16, "fsdp": 16, "zero": 1, "offload": "optimizer-on-disk"}, "ZeRO-3"),
        (megatron, {"dp": 16, "fsdp": 16, "zero": 1, "offload": "optimizer-on-disk"}, "on disk"),
        (titan, {"dp": 16, "fsdp": 16, "zero": 3, "offload": "optimizer-on-disk"}, "on disk"),
        (fsdp, {"dp": 16, "fsdp": 16, "zero": 3, "offload": "all-on-disk"}, "on disk"),
        (nemo, {"dp": 16, "fsdp": 16, "zero": 3}, "another strategy"),
        (nemo, {"dp": 4, "pp": 4, "schedule": "zero-bubble"}, "1F1B"),
    ],
)
def test_what_a_framework_cannot_do_is_said(
    framework: Any, layout: dict[str, object], reason: str
) -> None:
    asked = request(**{"global_batch": 32, **layout})  # type: ignore[arg-type]
    assert any(reason in sentence for sentence in framework.cannot(asked))


def test_a_framework_gets_the_best_layout_that_it_can_run() -> None:
    task = a_task("16xH100")
    families = find(task).found.families
    best = task.estimate(families.layouts.at(0))
    for launch in launches(task.model, families, best, task.cluster, 2048):
        framework = next(one for one in FRAMEWORKS if launch.framework == one.NAME)
        asked = request(**{f: getattr(launch.layout, f) for f in Layout.__struct_fields__})
        assert framework.cannot(asked) == []
        assert launch.times_slower >= 1
        assert (launch.layout == best.layout) == (not launch.cannot)
        found = task.estimate(launch.layout).step_seconds / best.step_seconds
        assert launch.times_slower == pytest.approx(found)


def test_a_family_of_models_that_a_framework_lacks_is_left_out_with_the_reason() -> None:
    task = a_task("16xH100", model=a_model(family="gpt_neox"))
    families = find(task).found.families
    best = task.estimate(families.layouts.at(0))
    by_name = {one.framework: one for one in launches(
        task.model, families, best, task.cluster, 2048)}  # fmt: skip
    assert by_name["torchtitan"].command == ""
    assert "no model of the family gpt_neox" in by_name["torchtitan"].cannot[0]
