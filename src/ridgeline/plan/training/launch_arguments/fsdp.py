"""PyTorch FSDP2 through Hugging Face accelerate's launcher.

Names are those of `accelerate/commands/launch.py`. ZeRO-3 reshards after the forward pass,
ZeRO-2 does not; while gradients accumulate without synchronisation (`accelerator.accumulate`)
they stay whole, which is ZeRO-1. Its shard group is dp_shard x cp; ZeRO-0 is plain DDP.
"""

from __future__ import annotations

from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written, lines

NAME = "fsdp"
CHECKED = "accelerate commit 16cb6eb8 of 2026-07-24"


def cannot(request: LaunchRequest) -> list[str]:
    """Why FSDP2 with accelerate cannot run the layout."""
    layout = request.layout
    reasons = []
    if layout.pp > 1:
        reasons.append("accelerate has no pipeline for training")
    if layout.ep > 1 or layout.etp > 1:
        reasons.append("it has no expert parallelism")
    if layout.zero == 1 and layout.num_microbatches == 1:
        reasons.append("FSDP shards gradients with the optimizer: no ZeRO-1")
    if layout.zero == 0 and layout.num_devices > layout.dp:
        reasons.append("replicated weights (DDP) do not combine with tp or cp")
    if layout.zero and layout.fsdp % layout.cp:
        reasons.append(f"its shard group is a multiple of cp; here {layout.fsdp} over {layout.cp}")
    if layout.zero and layout.fsdp == layout.cp and layout.dp > 1:
        reasons.append("it cannot replicate over data ranks and shard over cp alone")
    if layout.offload == "optimizer" or (layout.offload != "none" and layout.zero == 0):
        reasons.append("it offloads parameters with the optimizer, not the optimizer alone")
    if layout.on_disk:
        reasons.append("it keeps nothing on disk")
    if layout.recompute == "selective":
        reasons.append("its checkpointing is per layer")
    if layout.precision in ("mxfp8", "nvfp4"):
        reasons.append(f"it has no {layout.precision}")
    return reasons


def write(request: LaunchRequest) -> Written:
    """The launcher's command; batch sizes are the script's to set."""
    layout = request.layout
    options = [
        "accelerate launch",
        f"--num_processes {layout.num_devices}",
        f"--num_machines {request.num_nodes}",
        f"--mixed_precision {'no' if layout.precision == 'fp32' else layout.precision}",
        f"--dynamo_backend {'inductor' if layout.compiled else 'no'}",
    ]
    if request.num_nodes > 1:
        options += [
            "--machine_rank $NODE_RANK",
            "--main_process_ip $MASTER_ADDR",
            "--main_process_port 29500",
        ]
    options += _sharding(request) if layout.zero else ["--multi_gpu"]
    command = lines(*options, "train.py")
    command += (
        f"\n# in train.py: batches of {layout.micro_batch} per data-parallel rank,"
        f" gradient_accumulation_steps={layout.num_microbatches}"
    )
    if layout.recompute == "full" and not layout.zero:
        command += ", model.gradient_checkpointing_enable()"
    return Written(command=command)


def _sharding(request: LaunchRequest) -> list[str]:
    layout = request.layout
    shard = layout.fsdp // layout.cp
    options = [
        "--use_fsdp",
        "--fsdp_version 2",
        "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP",
        f"--fsdp_reshard_after_forward {'true' if layout.zero == 3 else 'false'}",
    ]
    if layout.recompute == "full":
        options.append("--fsdp_activation_checkpointing true")
    if layout.offload == "optimizer+parameters":
        options.append("--fsdp_offload_params true")
    sizes = {
        "dp_replicate": layout.dp // shard,
        "dp_shard": shard,
        "tp": layout.tp,
        "cp": layout.cp,
    }
    if any(size > 1 for name, size in sizes.items() if name != "dp_shard"):
        options.append("--use_parallelism_config")
        options += [f"--parallelism_config_{name}_size {size}" for name, size in sizes.items()]
    return options
