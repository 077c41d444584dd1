"""The layout for Megatron-LM: command-line options of `pretrain_gpt.py`.

Names are those of `megatron/training/arguments.py` and of the fields of `TransformerConfig`,
`ModelParallelConfig` and `DistributedDataParallelConfig`, which the parser turns into options.
Uneven stages are written with `--pipeline-model-parallel-layout`. ZeRO-1 is its distributed
optimizer, ZeRO-2 and 3 its FSDP; hybrid sharding is several optimizer instances.
"""

from __future__ import annotations

from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written, lines, torchrun
from ridgeline.records.layout import Layout

NAME = "megatron-lm"
CHECKED = "commit d98e8a64dd of 2026-08-22"


def cannot(request: LaunchRequest) -> list[str]:
    """Why Megatron-LM cannot run the layout."""
    layout, model = request.layout, request.model
    reasons = []
    if model.state is not None or model.indexer is not None:
        reasons.append(f"its options for the layers of {model.name} are not known here")
    if layout.schedule == "zero-bubble":
        reasons.append("it has no zero-bubble schedule")
    if layout.schedule == "gpipe" and layout.pp > 1:
        reasons.append("its pipelines run 1F1B, not GPipe")
    if layout.zero >= 2 and layout.pp > 1:
        reasons.append("its FSDP is documented without a pipeline")
    if layout.offload == "optimizer+parameters":
        reasons.append("it offloads the optimizer, not parameters")
    if layout.on_disk:
        reasons.append("it keeps nothing on disk")
    if layout.offload != "none" and layout.zero != 1:
        reasons.append("its optimizer offload goes with the distributed optimizer (ZeRO-1)")
    if model.kind != "decoder":
        reasons.append("pretrain_gpt.py trains decoders")
    return reasons


def write(request: LaunchRequest) -> Written:
    """The command; the data and the learning rate are the user's."""
    options = [
        *_model(request.model, request.seq),
        *_parallelism(request),
        *_batch(request),
        *_memory(request.layout),
        *_precision(request.layout),
    ]
    return Written(command=lines(torchrun(request), "pretrain_gpt.py", *options))


def _parallelism(request: LaunchRequest) -> list[str]:
    layout = request.layout
    options = [f"--tensor-model-parallel-size {layout.tp}"]
    if layout.sp:
        options.append("--sequence-parallel")
    options.append(f"--pipeline-model-parallel-size {layout.pp}")
    layers = request.model.layers
    if layout.pp > 1 and layers % (layout.pp * layout.vpp):
        options.append(f"--pipeline-model-parallel-layout {_stages(layers, layout.pp)}")
    elif layout.vpp > 1:
        options.append(f"--num-virtual-stages-per-pipeline-rank {layout.vpp}")
    options.append(f"--context-parallel-size {layout.cp}")
    if request.model.experts is not None:
        options += [
            f"--expert-model-parallel-size {layout.ep}",
            f"--expert-tensor-parallel-size {layout.etp}",
        ]
    return [*options, *_sharding(request)]


def _stages(layers: int, pp: int) -> str:
    """Uneven stages, full ones first: `"Ettt|ttt|tttL"`."""
    most = -(-layers // pp)
    counts = [most] * (pp - 1) + [layers - most * (pp - 1)]
    stages = ["t" * count for count in counts]
    return '"E' + "|".join(stages) + 'L"'


def _sharding(request: LaunchRequest) -> list[str]:
    layout = request.layout
    if layout.zero == 0:
        return ["--overlap-grad-reduce"]
    options = ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    if layout.zero >= 2:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[layout.zero]
        options += [
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy {strategy}",
            "--ckpt-format fsdp_dtensor",
        ]
    if request.replicas > 1:
        options.append(f"--num-distributed-optimizer-instances {request.replicas}")
    return options


def _batch(request: LaunchRequest) -> list[str]:
    return [
        f"--micro-batch-size {request.layout.micro_batch}",
        f"--global-batch-size {request.layout.global_batch}",
    ]


def _memory(layout: Layout) -> list[str]:
    options = []
    if layout.recompute == "selective":
        options += ["--recompute-granularity selective", "--recompute-modules core_attn"]
    if layout.recompute == "full":
        options += [
            "--recompute-granularity full",
            "--recompute-method uniform",
            "--recompute-num-layers 1",
        ]
    if layout.offload == "optimizer":
        options += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]
    return options


def _precision(layout: Layout) -> list[str]:
    by_name = {
        "fp32": [],
        "fp16": ["--fp16"],
        "bf16": ["--bf16"],
        "fp8": ["--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"],
        "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
        "nvfp4": ["--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"],
    }
    return by_name[layout.precision]


def _model(model: ModelSpec, seq: int) -> list[str]:
    options = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.ffn}",
        f"--num-attention-heads {model.heads}",
        f"--seq-length {seq}",
        f"--max-position-embeddings {max(model.max_positions, seq)}",
    ]
    if model.latent is not None:
        latent = model.latent
        options += ["--multi-latent-attention", f"--kv-lora-rank {latent.kv_rank}"]
        if latent.q_rank:
            options.append(f"--q-lora-rank {latent.q_rank}")
        options += [
            f"--qk-head-dim {latent.nope_dim}",
            f"--qk-pos-emb-head-dim {latent.rope_dim}",
            f"--v-head-dim {latent.value_dim}",
        ]
    else:
        options.append(f"--kv-channels {model.head_dim}")
        if model.kv_heads != model.heads:
            options += ["--group-query-attention", f"--num-query-groups {model.kv_heads}"]
    if model.gated_mlp:
        options.append("--swiglu")
    if model.norm == "rms":
        options.append("--normalization RMSNorm")
    options.append(
        "--position-embedding-type " + ("learned_absolute" if model.learned_positions else "rope")
    )
    if not model.tied_embeddings:
        options.append("--untie-embeddings-and-output-weights")
    if not (model.mlp_bias or model.output_bias):
        options.append("--disable-bias-linear")
    if model.attention_bias and not model.mlp_bias:
        options.append("--add-qkv-bias")
    return [*options, *_experts(model)]


def _experts(model: ModelSpec) -> list[str]:
    experts = model.experts
    if experts is None:
        return []
    options = [
        f"--num-experts {experts.num_experts}",
        f"--moe-router-topk {experts.top_k}",
        f"--moe-ffn-hidden-size {experts.ffn}",
        "--moe-grouped-gemm",
        "--moe-token-dispatcher-type alltoall",
    ]
    if experts.shared_ffn:
        options.append(f"--moe-shared-expert-intermediate-size {experts.shared_ffn}")
    if experts.dense_layers:
        moe = model.layers - experts.dense_layers
        options.append(f'--moe-layer-freq "([0]*{experts.dense_layers}+[1]*{moe})"')
    elif experts.every > 1:
        options.append(f"--moe-layer-freq {experts.every}")
    return options
