"""What an engine is started with; field for field the flags of `serve`, `generate`, `bench decode`.

The flags' defaults are these fields' defaults.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.batching.policies import Batching, Order


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who guesses tokens ahead, and how many."""

    kind: Literal["draft", "ngram", "heads", "eagle"]
    path: str = ""
    """The folder of the draft model, of the trained heads or of the EAGLE head."""
    num_drafts: int = 4
    tree: int | None = None
    """The guesses of a tree, which `num_drafts` limits in depth, for heads and EAGLE heads; None: a
    chain."""
    longest_match: int = 4
    """The number of tokens at the end that are looked up, for n-grams."""
    always: bool = False
    """Keep speculating even where it measures slower than not."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen; travels to the engine's process as msgpack."""

    model: str
    """Directory of a Hugging Face model, or a hub id."""
    tokenizer: str | None = None
    """Directory or hub id of the tokenizer; None: the model's own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """The dtype of the computation; auto: bf16 where the device multiplies it natively, else
    fp32."""
    weights: Literal["model", "int8", "int4", "fp8", "w8a8"] = "model"
    """The format of the weights; model: as stored (compressed-tensors run compressed); w8a8: int8,
    and activations are rounded to int8 before they are multiplied."""
    group_size: int = 128
    """The group size of int4 weights."""
    kv_dtype: Literal["model", "fp8", "int8"] = "model"
    """The format of the KV cache; model: as the checkpoint says, else as computed; fp8, int8: a
    scale per token and head."""
    tp: int = 1
    """The processes that each keep a share of every layer and of the KV cache (tensor
    parallelism)."""
    pp: int = 1
    """The processes that each keep some of the layers and their KV cache (pipeline parallelism)."""
    expert_parallel: bool = False
    """Whether each of the processes of `tp` keeps some experts of a mixture, and these whole."""
    kv_layout: Literal["paged", "contiguous", "dynamic"] = "paged"
    kv_recent: int | None = None
    """Each token sees the last so many only, and the first `kv_first`: other answers than the
    model's, in a cache that does not grow; None: all tokens before it."""
    kv_first: int = 4
    """The tokens at the beginning that are seen beside `kv_recent`."""
    block_size: int = 16
    kv_bytes: int | None = None
    """Bytes of the KV cache of all ranks; None: what `memory_share` leaves, on a CPU at most
    4 GiB."""
    memory_share: float = 0.9
    max_length: int | None = None
    """The longest sequence in tokens; None: the model's own, as far as the cache reaches."""
    max_tokens_per_step: int = 2048
    itl_target_seconds: float | None = None
    """The longest step with decodes: chunks of prompts beside them are as large as measured steps
    leave room for; None: twice what decodes alone take, as `batching/pace.py` says."""
    max_sequences: int = 256
    max_waiting: int = 1024
    batching: Batching = "continuous"
    order: Order = "fcfs"
    prefix_cache: bool = True
    chunked_prefill: bool = True
    speculation: SpeculationConfig | None = None
    adapters: dict[str, str] = {}
    """Directories of PEFT LoRA adapters, by name."""
    max_adapters: int = 8
    """Kept in memory; the least recently used goes."""
    compiled: bool = False
    """Decode through torch.compile (CPU) in static shapes."""
    graphs: bool = True
    """Decode through CUDA graphs (CUDA)."""
    packed_cache: bool = True
    """Keep packed weights and proofs of a model of some size on disk for the next start (CPU)."""
    threads: int | None = None
    """Threads of each rank on a CPU; None: the cores it may use, dealt out to the ranks."""
    seed: int = 0
    debug: bool = False
    """Check the integrity of every cache at each step."""
    trust_remote_code: bool = False
    step_log: str | None = None
    """File that gets a line per step; None: none is written."""

    @property
    def kept(self) -> KeptTokens | None:
        """What sequences keep of their tokens; None: all."""
        if self.kv_recent is None:
            return None
        return KeptTokens(recent=self.kv_recent, first=self.kv_first)

    @property
    def ranks(self) -> int:
        """The processes that one model is cut over."""
        return self.tp * self.pp

    @property
    def cut(self) -> str:
        """The option that cuts the model, as it was given."""
        given = {"--tp": self.tp, "--pp": self.pp}
        return " ".join(f"{option} {size}" for option, size in given.items() if size > 1)
