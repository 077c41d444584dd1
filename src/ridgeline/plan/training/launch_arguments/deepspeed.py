"""The layout for DeepSpeed: its JSON configuration and the launcher's command line.

Names are those of `deepspeed/runtime/config.py`, `zero/config.py`, `zero/offload_config.py`,
`lr_schedules.py`, `activation_checkpointing/config.py` and `tensor_parallel/config.py`. Optimizer
and schedule are those that the plan's recipe starts from. Tensor parallelism is its AutoTP.
Pipelines and experts are written into the model's code there, not into the configuration, so
layouts with them are left to others.
"""

from __future__ import annotations

import json
from typing import Any

from ridgeline.models import parameter_count
from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written, lines
from ridgeline.plan.training.starting_rate import FINAL_SHARE, starting_rate
from ridgeline.records.recipe import RecipeOptimizer

NAME = "deepspeed"
CHECKED = "commit edaa72212 of 2026-08-22, and what release 0.19.8 reads"
FILE = "ds_config.json"
NVME_PATH = "/local_nvme"
"""A place to be replaced: the plan does not know where a node's disk is mounted."""


def cannot(request: LaunchRequest) -> list[str]:
    """Why a DeepSpeed configuration cannot express the layout."""
    layout = request.layout
    reasons = []
    if layout.pp > 1:
        reasons.append("a pipeline is written into the model (PipelineModule), not configured")
    if layout.cp > 1:
        reasons.append("its sequence parallelism is Ulysses, not a ring")
    if layout.ep > 1 or layout.etp > 1:
        reasons.append("expert parallelism is written into the model, not configured")
    if layout.zero and request.replicas > 1:
        reasons.append("ZeRO shards over all data-parallel ranks (MiCS, which did not, is removed)")
    if layout.offload != "none" and layout.zero == 0:
        reasons.append("offloading needs ZeRO-1 or more")
    if layout.on_disk and layout.zero in (1, 2):
        reasons.append("NVMe takes the state of ZeRO-3 alone")
    if layout.recompute == "selective":
        reasons.append("its checkpointing is per layer")
    if layout.precision not in ("fp32", "fp16", "bf16"):
        reasons.append(f"it has no {layout.precision} matmuls of its own")
    return reasons


def write(request: LaunchRequest) -> Written:
    """The launcher's command and the configuration file."""
    launcher = "deepspeed"
    if request.num_nodes > 1:
        launcher += f" --hostfile hostfile --num_nodes {request.num_nodes}"
    launcher += f" --num_gpus {request.per_node}"
    command = lines(launcher, "train.py", f"--deepspeed_config {FILE}")
    if request.layout.recompute == "full":
        command += (
            "\n# in train.py: deepspeed.checkpointing.checkpoint around each layer, or, of"
            " transformers, model.gradient_checkpointing_enable()"
        )
    if request.layout.on_disk:
        command += f"\n# in {FILE}: nvme_path is where the node's NVMe disk is mounted"
    return Written(
        command=command, files={FILE: json.dumps(configuration(request), indent=2) + "\n"}
    )


def configuration(request: LaunchRequest) -> dict[str, Any]:
    """The content of the file."""
    layout = request.layout
    zero: dict[str, Any] = {"stage": layout.zero}
    if layout.zero:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    zero |= _offload(request)
    content: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_microbatches,
        "gradient_clipping": _USUAL.clip_norm,
        "optimizer": _optimizer(request),
        "scheduler": _scheduler(request),
        "zero_optimization": zero,
    }
    if layout.recompute == "full":
        content["activation_checkpointing"] = {
            "partition_activations": layout.tp > 1,
            "contiguous_memory_optimization": False,
            "cpu_checkpointing": False,
        }
    if layout.precision == "bf16":
        content["bf16"] = {"enabled": True}
    if layout.precision == "fp16":  # a loss scale of 2**16 that moves, as in our recipes
        content["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}
    if layout.tp > 1:
        content["tensor_parallel"] = {"autotp_size": layout.tp}
    return content


_USUAL = RecipeOptimizer(learning_rate=1.0, final_learning_rate=0.0)
"""What a recipe trains with where it says nothing else."""


def _optimizer(request: LaunchRequest) -> dict[str, Any]:
    return {
        "type": "AdamW",
        "params": {
            "lr": _starting_rate(request),
            "betas": list(_USUAL.betas),
            "eps": _USUAL.epsilon,
            "weight_decay": _USUAL.weight_decay,
        },
    }


def _scheduler(request: LaunchRequest) -> dict[str, Any]:
    """A warm-up and a cosine; without a number of tokens only the warm-up is known."""
    warmup = {"warmup_num_steps": _USUAL.warmup_steps, "warmup_type": "linear"}
    if request.steps is None:
        rates = {
            "warmup_min_lr": 0.0,
            "warmup_max_lr": _starting_rate(request),
        }
        return {"type": "WarmupLR", "params": rates | warmup}
    whole = {"total_num_steps": request.steps, "cos_min_ratio": FINAL_SHARE}
    # DeepSpeed wants a warm-up no longer than the run.
    warmup["warmup_num_steps"] = min(_USUAL.warmup_steps, request.steps)
    return {"type": "WarmupCosineLR", "params": whole | {"warmup_min_ratio": 0.0} | warmup}


def _offload(request: LaunchRequest) -> dict[str, Any]:
    """What of ZeRO's states lies in the host's memory or on its disk."""
    kept = request.layout.offload
    if kept == "none":
        return {}
    if request.layout.on_disk:
        pipelined = {"pipeline_read": True, "pipeline_write": True, "buffer_count": 4}
        disk = {"device": "nvme", "nvme_path": NVME_PATH, "pin_memory": True}
        return {"offload_optimizer": disk | pipelined} | (
            {"offload_param": disk | _param_buffers(request)} if kept == "all-on-disk" else {}
        )
    host: dict[str, Any] = {"device": "cpu", "pin_memory": True}
    both = kept == "optimizer+parameters"
    return {"offload_optimizer": host} | ({"offload_param": dict(host)} if both else {})


LEAST_BUFFER = 10**8
"""Elements of a buffer of DeepSpeed's own choice."""


def _param_buffers(request: LaunchRequest) -> dict[str, int]:
    """Buffers of as many elements as a rank's share of the largest parameter has."""
    model, layout = request.model, request.layout
    largest = model.hidden * max(model.vocab, model.ffn)
    return {"buffer_count": 5, "buffer_size": max(LEAST_BUFFER, -(-largest // layout.fsdp))}


def _starting_rate(request: LaunchRequest) -> float:
    return starting_rate(parameter_count(request.model), adapters=request.adapters)
