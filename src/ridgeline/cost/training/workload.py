"""What is trained and with which software: everything about a run but model, cluster, layout."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.arrays import Flag, Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A class of training software. The presets are in `plan/training/stacks.toml`."""

    name: str = "torch"
    cues: tuple[str, ...] = ()
    """Patterns that name a member of the class in the words of a published table."""
    fitted: Flag = True
    """Whether the table that the coefficients are fitted to holds runs of it."""
    fused_attention: Flag = True
    """FlashAttention or like; else the score matrix goes through memory."""
    attention_rate: Number = 1.0
    """Rate of its fused attention over FlashAttention-2's."""
    selective_operators: Flag = False
    """Selective recomputation keeps attention and every second matmul (torchtitan's `SelectiveAC`)
    and not, as Megatron-LM's does, all but the attention core."""
    vendor_attention: Flag = False
    """The vendor's own fused attention, faster than FlashAttention-2 on newer parts."""
    sink_attention: Flag = False
    """Whether the vendor's attention also takes learned sinks."""
    fused_elementwise: Flag = False
    """Element-wise chains are hand-fused whatever the layout's `compiled` says (Megatron, XLA)."""
    eager_loss: Flag = False
    """The loss runs as separate kernels even where the layers are compiled."""
    own_loss: Flag = False
    """A cross entropy by hand turns logits into their gradient in place, compiled or not."""
    modules: Flag = False
    """Layers are modules of a vendor's library (Transformer Engine), whose Python around each
    launch takes longer than the launch."""
    legacy: Flag = False
    """Frameworks of 2019 to 2022: slow host, no overlap of communication."""
    overlap_tensor: Flag = False
    """Tensor-parallel communication runs beside the matmuls (user buffers, async TP)."""
    overlap_data: Flag = True
    """Gradient and parameter traffic runs beside the backward pass."""
    expert_rate: Number = 1.0
    """Speed of routing, permuting and launching experts over that of 2025's frameworks."""
    hierarchical_dispatch: Flag = False
    """A token crosses the network once per domain, not once per expert (DeepEP, HybridEP)."""
    overlap_experts: Flag = False
    """Dispatch and combination run beside another micro-batch's layers (DualPipe and the like)."""
    shards_optimizer: Flag = False
    """Its recipes shard the optimizer among copies unless told otherwise (Megatron-core's
    `use_distributed_optimizer`)."""
    growing_buckets: Flag = False
    """Whether a step's gradients and weights travel in buckets that grow with the ranks, rather
    than a layer each: `communication.num_buckets`."""
    interleave_experts: Flag = False
    """They do where it is worth its memory: experts span domains, and virtual pipeline stages put
    a forward pass beside a backward pass (Megatron-LM's `--overlap-moe-expert-parallel-comm`)."""
    forced_balance: Flag = False
    """Tokens are dealt out evenly whatever the router says, as benchmarks do."""
    repeats_core: Flag = True
    """Selective recomputation redoes the attention core, as it does unless modules are named
    (Megatron-core's `--recompute-modules`)."""
    repeats_experts: Flag = False
    """It redoes whole mixtures of experts, their all-to-alls too (the module `moe`)."""
    repeats_gates: Flag = False
    """It redoes what stands between an expert's matmuls (the module `moe_act`)."""
    repeats_latent: Flag = False
    """It redoes queries, keys and values of latent attention (the module `mla_up_proj`)."""
    hook_seconds: Number = 0.0
    """Host time of one pass through a layer in hooks around its modules, which gather their weights
    and give them back one by one."""
    captured: Flag = False
    """A step's launches are replayed from CUDA graphs: the host launches a graph, not operators."""
    dropout: Flag = False
    weight_bytes: Number = 2.0
    """Bytes per weight of the copy that the matmuls read."""
    gradient_bytes: Number = 4.0
    """Bytes per element of the accumulated gradient."""
    reduce_bytes: Number = 2.0
    """Bytes of a gradient element on the wire."""
    step_gradient_bytes: Number = 0.0
    """Bytes per element of the copy of a shard's gradients that the optimizer makes for its
    step."""
    bucket_bytes: Number = 0.0
    """Bytes of the buffers in which gradients and weights are packed for their collectives."""
    master_bytes: Number = 4.0
    optimizer_bytes: Number = 8.0
    chunked_logits: Flag = False
    """The loss is computed in pieces, never holding all logits."""
    by_operator: Flag = False
    """Its configurations recompute by operator unless told otherwise."""
    offloads_if_near: Flag = False
    """Its recipes of fully sharded runs let activations wait in the host's memory where a fast link
    leads there (Megatron-Bridge's `cpu_offloading_num_layers` on GB200 and GB300)."""
    frees_gradients: Flag = False
    """Each weight is updated when its gradient is there, which is freed at once (an optimizer
    within the backward pass)."""
    step_copies: Flag = False
    """The optimizer's step holds one more copy of a moment for all parameters at once (torch's
    `foreach` implementation, its default on GPUs)."""
    sums_whole_gradients: Flag = False
    """Fully sharded gradients are summed over micro-batches before they are scattered, and so are
    whole on every device (FSDP's `no_sync`)."""
    widens_tables: Flag = False
    """Embeddings and head beside four-bit layers are turned into 32 bits (peft's
    `prepare_model_for_kbit_training`)."""
    ragged: Flag = False
    """Lengths differ from batch to batch, so that the allocator's blocks fit none of the next."""
    offloads_activations: Flag = False
    """What layers keep for the backward pass waits for it in the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankAdapters:
    """What is trained beside frozen weights (LoRA); of rank 0, the weights themselves are."""

    rank: Number = 0.0
    weight_bytes: Number = 2.0
    """Bytes per frozen weight of a linear layer, scales included."""
    table_bytes: Number = 2.0
    """Bytes per frozen weight of embeddings and head, which are not quantised."""
    dropout: Flag = False
    """Whether each adapter drops some of its inputs."""
    saves_inputs: Flag = False
    """Whether frozen layers keep their inputs, which no gradient needs (four bits in bitsandbytes
    before 0.43.2: its pull request 1270)."""
    query: Number = 1.0
    """1 where queries' projections have an adapter, else 0; likewise those that follow."""
    key: Number = 1.0
    value: Number = 1.0
    output: Number = 1.0
    gate: Number = 1.0
    up: Number = 1.0
    down: Number = 1.0

    @property
    def everywhere(self) -> Number:
        """1 where every linear layer has an adapter."""
        attention = self.query * self.key * self.value * self.output
        return attention * self.gate * self.up * self.down


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The task of a run, whose sequences all have `seq` tokens."""

    seq: int
    causal: bool = True
    stack: Stack = Stack()
    adapters: LowRankAdapters = LowRankAdapters()
    document: int = 0
    """Tokens of one document when several are packed into a sequence and do not see each other;
    0: a sequence is one document."""
    recompute_share: float = 1.0
    """The share of the layers that really recompute where the layout says full recomputation."""
