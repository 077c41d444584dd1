"""The layout for DeepSpeed: its JSON configuration and the launcher's command line.

Names are those of `deepspeed/runtime/config.py`, `zero/config.py`, `zero/offload_config.py` and
`tensor_parallel/config.py`. Tensor parallelism is its AutoTP. Pipelines and experts are written
into the model's code there, not into the configuration, so layouts with them are left to others.
"""

from __future__ import annotations

import json
from typing import Any

from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written, lines

NAME = "deepspeed"
CHECKED = "commit edaa72212 of 2026-08-22"
FILE = "ds_config.json"


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
    if 0 < layout.zero < 3 and request.replicas > 1:
        reasons.append("ZeRO-1 and 2 shard over all data-parallel ranks")
    if layout.zero == 3 and request.replicas > 1 and layout.tp > 1:
        reasons.append("hybrid sharding (MiCS) does not combine with AutoTP")
    if layout.offload != "none" and layout.zero == 0:
        reasons.append("offloading needs ZeRO-1 or more")
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
        command += "\n# in train.py: model.gradient_checkpointing_enable()"
    return Written(
        command=command, files={FILE: json.dumps(configuration(request), indent=2) + "\n"}
    )


def configuration(request: LaunchRequest) -> dict[str, Any]:
    """The content of the file."""
    layout = request.layout
    zero: dict[str, Any] = {"stage": layout.zero}
    if layout.zero:
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    if layout.zero == 3 and request.replicas > 1:
        zero["mics_shard_size"] = layout.fsdp
    if layout.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "optimizer+parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    content: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_microbatches,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if layout.precision in ("bf16", "fp16"):
        content[layout.precision] = {"enabled": True}
    if layout.tp > 1:
        content["tensor_parallel"] = {"autotp_size": layout.tp}
    return content
