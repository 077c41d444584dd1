"""The layout for NeMo 2.0: what `nemo llm pretrain` (NeMo-Run's command line) sets of a recipe.

Names are those of `nemo/lightning/pytorch/strategies/megatron_strategy.py`, of the trainer and the
data in `nemo/collections/llm/recipes/llama3_8b.py`, and of Megatron-Core's `TransformerConfig`,
whose fields the recipe's model has. A recipe of the family is taken, and the model's sizes and all
of its layout are set over its own: `mixtral_8x7b.py` has eight chunks on each of four stages, and
`mistral_7b.py` a window. Its optimizer is Megatron-Core's distributed one (ZeRO-1) unless that is
switched off.
"""

from __future__ import annotations

from ridgeline.plan.training.launch_arguments.request import LaunchRequest, Written, lines

NAME = "nemo"
CHECKED = "commits 00114ea3 (the strategy), 00617962 (Llama), 0067c7b5 (Mixtral); NeMo-Run 0.11.1"
RECIPES = {
    "llama": "llama3_8b",
    "mistral": "mistral_7b",
    "mixtral": "mixtral_8x7b",
    "qwen2": "qwen2_7b",
}
"""Family → the recipe whose model has its parts."""


def cannot(request: LaunchRequest) -> list[str]:
    """Why a recipe of NeMo cannot run the layout."""
    layout, model = request.layout, request.model
    reasons = []
    if model.family not in RECIPES:
        reasons.append(
            f"no recipe for the family {model.family} is known here, only for {', '.join(RECIPES)}"
        )
    elif (model.experts is not None) is not (model.family == "mixtral"):
        reasons.append("its recipe for mixtures is Mixtral's, every layer of which has experts")
    if layout.schedule in ("zero-bubble", "gpipe") and layout.pp > 1:
        reasons.append("its pipelines run 1F1B, interleaved or not")
    if model.layers % (layout.pp * layout.vpp):
        reasons.append("its stages have as many layers each")
    if layout.zero >= 2:
        reasons.append("ZeRO-2 and 3 go with another strategy (FSDP), without these axes")
    if layout.zero == 1 and request.replicas > 1:
        reasons.append("its optimizer shards over all data-parallel ranks")
    if layout.offload != "none":
        reasons.append("its recipes offload nothing")
    if layout.precision != "bf16":
        reasons.append("the recipe's precision is bf16")
    if model.experts is not None and layout.etp != layout.tp:
        reasons.append("experts are cut as their layer is: by as many tensor-parallel ranks")
    return reasons


def write(request: LaunchRequest) -> Written:
    """The command; data and learning rate are the recipe's until you set them."""
    layout, model = request.layout, request.model
    strategy: dict[str, object] = {
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.sp,
        "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
    }
    if model.experts is not None:
        strategy["expert_model_parallel_size"] = layout.ep
    if layout.pp > 1:
        strategy["pipeline_dtype"] = "torch.bfloat16"
    sizes: dict[str, object] = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads,
        "kv_channels": model.head_dim,
        "seq_length": request.seq,
    }
    if model.experts is not None:
        sizes |= {
            "ffn_hidden_size": model.experts.ffn,
            "num_moe_experts": model.experts.num_experts,
            "moe_router_topk": model.experts.top_k,
        }
    if model.family == "mistral" and not model.sliding_window:
        sizes["window_size"] = None
    batch = {
        "seq_length": request.seq,
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": layout.global_batch,
    }
    settings = [
        f"trainer.num_nodes={request.num_nodes}",
        f"trainer.devices={request.per_node}",
        *(f"trainer.strategy.{name}={value}" for name, value in strategy.items()),
        *(f"model.config.{name}={value}" for name, value in (sizes | _recompute(request)).items()),
        *(f"data.{name}={value}" for name, value in batch.items()),
    ]
    if layout.zero == 0:
        settings.append("optim.config.use_distributed_optimizer=False")
    return Written(command=lines(f"nemo llm pretrain --factory {RECIPES[model.family]}", *settings))


def _recompute(request: LaunchRequest) -> dict[str, object]:
    """The fields of `TransformerConfig` for what backward computes again."""
    if request.layout.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    if request.layout.recompute == "selective":
        return {"recompute_granularity": "selective"}
    return {}
