"""The layout for torchtitan: a Python configuration, which describes its runs since 2026.

Names are those of `torchtitan/config/configs.py` (`ParallelismConfig`, `TrainingConfig`),
`torchtitan/distributed/activation_checkpoint.py` and `torchtitan/distributed/parallel_dims.py`.
Its FSDP group is dp_shard x cp. With a pipeline, FSDP that never reshards keeps weights and
gradients whole and shards the optimizer: what we call ZeRO-1.
"""

from __future__ import annotations

import re

from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written, lines, torchrun

NAME = "torchtitan"
CHECKED = "commit b5bcd76c6 of 2026-08-21"
_MODULES = {
    "llama": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v3": "deepseek_v3",
    "gpt_oss": "gpt_oss",
}
_REGISTRY = {
    "llama3_8b": r"llama_3(_1)?_8b",
    "llama3_70b": r"llama_3(_[13])?_70b",
    "llama3_405b": r"llama_3_1_405b",
    "qwen3_0_6b": r"qwen3_0_6b",
    "qwen3_1_7b": r"qwen3_1_7b",
    "qwen3_14b": r"qwen3_14b",
    "qwen3_32b": r"qwen3_32b",
    "qwen3_30b_a3b": r"qwen3_30b_a3b",
    "deepseek_v3_671b": r"deepseek_v3(_671b)?",
    "gpt_oss_20b": r"gpt_oss_20b",
    "gpt_oss_120b": r"gpt_oss_120b",
}
"""Configuration of a `config_registry.py` → the models that it is, by name."""
_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
_CHECKPOINTING = {"none": "", "selective": "SelectiveAC", "full": "FullAC"}
_CONVERTERS = {
    "fp8": "Float8LinearConverter",
    "mxfp8": "MXFP8LinearConverter",
    "nvfp4": "NVFP4LinearConverter",
}


def cannot(request: LaunchRequest) -> list[str]:
    """Why torchtitan cannot run the layout."""
    layout, model = request.layout, request.model
    reasons = []
    if model.family not in _MODULES:
        reasons.append(f"torchtitan has no model of the family {model.family}")
    if layout.fsdp % layout.cp:
        reasons.append(f"its shard group is a multiple of cp; here {layout.fsdp} over {layout.cp}")
    if layout.zero == 0 and layout.num_devices > layout.dp:
        reasons.append("replicated weights (DDP) do not combine with tp, pp or cp")
    if layout.zero == 1 and layout.pp == 1:
        reasons.append("FSDP shards gradients with the optimizer: no ZeRO-1 without a pipeline")
    if layout.schedule not in _SCHEDULES:
        reasons.append(f"it has no {layout.schedule} schedule with one chunk per rank")
    if layout.etp > 1:
        reasons.append("experts are not split by tensor parallelism (etp)")
    if layout.offload == "optimizer":
        reasons.append("it offloads parameters with the optimizer, not the optimizer alone")
    if layout.on_disk:
        reasons.append("it keeps nothing on disk")
    if layout.precision == "fp16":
        reasons.append("it trains in bf16, not fp16")
    return reasons


def write(request: LaunchRequest) -> Written:
    """A configuration module and the command that runs it."""
    command = lines(
        torchrun(request),
        "-m torchtitan.train",
        "--module ridgeline_plan",
        "--config planned",
    )
    return Written(command=command, files={"ridgeline_plan.py": _module(request)})


def _module(request: LaunchRequest) -> str:
    layout = request.layout
    package = f"torchtitan.models.{_MODULES[request.model.family]}"
    base, known = _base(request)
    imports = [f"from {package}.config_registry import {base} as base"]
    checkpointing = _CHECKPOINTING[layout.recompute]
    if checkpointing:
        imports.append(f"from torchtitan.distributed.activation_checkpoint import {checkpointing}")
    settings = [f"config.{name} = {value!r}" for name, value in _settings(request).items()]
    config = f"{checkpointing}.Config()" if checkpointing else None
    settings.append(f"config.activation_checkpoint = {config}")
    comments = ["# `base` is the configuration to start from; its data and learning rate stay."]
    if not known:
        comments.append(f"# {base} stands in: the registry has no {request.model.name}. Put yours.")
    if layout.precision in _CONVERTERS:
        converter = _CONVERTERS[layout.precision]
        comments.append(
            f"# {layout.precision}: build model_spec with"
            f" model_registry(…, converters=[{converter}.Config(…)])."
        )
    body = "\n    ".join(["config = base()", *settings, "return config"])
    return (
        '"""Written by `ridgeline plan training`."""\n\n'
        + "\n".join(sorted(imports))
        + "\n\n"
        + "\n".join(comments)
        + f"\n\n\ndef planned():\n    {body}\n"
    )


def _settings(request: LaunchRequest) -> dict[str, object]:
    layout = request.layout
    shard = layout.fsdp // layout.cp if layout.zero else 1
    reshard = "always" if layout.zero == 3 else "never"
    settings: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": layout.dp // shard,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.fsdp_reshard_after_forward": reshard,
        "parallelism.tensor_parallel_degree": layout.tp,
        "parallelism.enable_sequence_parallel": layout.sp or layout.tp == 1,
        "parallelism.context_parallel_degree": layout.cp,
        "parallelism.expert_parallel_degree": layout.ep,
        "parallelism.pipeline_parallel_degree": layout.pp,
        "training.max_context_length": request.seq,
        "training.num_tokens_per_microbatch_per_dp_rank": layout.micro_batch * request.seq,
        "training.num_tokens_per_train_step": layout.global_batch * request.seq,
        "training.enable_cpu_offload": layout.offload != "none",
        "compile.enable": layout.compiled,
    }
    if layout.pp > 1:
        layers = request.model.layers + request.model.decoder_layers
        settings |= {
            "parallelism.pipeline_parallel_schedule": _SCHEDULES[layout.schedule],
            "parallelism.pipeline_parallel_layers_per_stage": -(
                -layers // (layout.pp * layout.vpp)
            ),
            "parallelism.pipeline_parallel_first_stage_less_layers": 0,
            "parallelism.pipeline_parallel_last_stage_less_layers": 0,
            "parallelism.num_pp_microbatches": layout.num_microbatches,
        }
    return settings


def _base(request: LaunchRequest) -> tuple[str, bool]:
    """The registry's configuration of the model, and whether it has one; else its smallest."""
    name = re.sub(r"[^a-z0-9]+", "_", request.model.name.lower())
    for base, pattern in _REGISTRY.items():
        if re.fullmatch(pattern, name):
            return base, True
    return f"{_MODULES[request.model.family]}_debugmodel", False
