"""What an engine did: answers with their times, and how fast it decodes beside the memory."""

from __future__ import annotations

import msgspec


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the memory ledger."""

    what: str
    bytes: int
    note: str = ""


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache of one run."""

    num_blocks: int
    block_size: int
    """Tokens of one block."""
    bytes_per_token: int
    """Keys and values of all layers."""
    prefix_queries: int
    """Prompt tokens that were looked up."""
    prefix_hits: int
    """Prompt tokens that were found and not computed again."""
    preemptions: int
    wasted_tokens: int
    """Computed, thrown away by a preemption, and computed again."""


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, with what it cost."""

    prompt: str
    index: int
    """Which of the answers to this prompt."""
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were found and not computed."""
    output_tokens: int
    num_preemptions: int
    ttft_seconds: float | None
    """From when the request came to its first token."""
    tpot_seconds: float | None
    """Mean time per token after the first; None with fewer than two tokens."""
    total_seconds: float


class Generation(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="generation"):
    """A run of `ridgeline generate`."""

    model: str
    dtype: str
    device: str
    answers: tuple[Generated, ...]
    load_seconds: float
    seconds: float
    """From the first request to the last token."""
    output_tokens_per_second: float
    steps: int
    draft_rounds: int
    """Sequences' steps with drafts; each yields its accepted drafts and one token more."""
    drafted_tokens: int
    accepted_tokens: int
    cache: CacheStatistics
    memory: tuple[MemoryUse, ...]


class DecodeBench(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="decode-bench"
):
    """The speed of decoding beside that of reading: both measured in turns within one run."""

    model: str
    dtype: str
    weights: str
    kernels: tuple[str, ...] = ()
    """Whose kernels multiply them on this CPU, and how the two compare, in words."""
    device: str
    threads: int
    batch: int
    """Sequences that decode together."""
    context: int
    """Tokens in each one's cache when measuring began."""
    steps: int
    """Steps of decoding, over all rounds."""
    step_seconds: float
    """Median seconds of a step."""
    step_samples: tuple[float, ...] = ()
    """Seconds of each step, in order."""
    fastest_step_seconds: float
    tokens_per_second: float
    """Tokens per second, the batch over `step_seconds`."""
    outside_model_seconds: float
    """Median of a step's time that is not the model's forward: scheduling, sampling, sending."""
    weight_bytes: int
    """What is read per step: every weight but the rows of the embedding that are not looked up."""
    kv_bytes: int
    """Keys and values read per step, mean."""
    read_bytes_per_second: float
    """(weight_bytes + kv_bytes) / step_seconds"""
    machine_bytes_per_second: float
    """Read from memory in the same run, between the rounds; median."""
    share: float
    """Share of the machine's bandwidth: `read_bytes_per_second` over `machine_bytes_per_second`."""
    rounds: int
    machine_rounds: tuple[float, ...]
    """Each round's read bandwidth, to see how much it wavers."""
