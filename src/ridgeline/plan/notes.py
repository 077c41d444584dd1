"""What the English notes of published tables say, as typed values: the one place that reads them.

The tables keep in a `note` what has no column of its own: how FLOPs were counted, which network a
cluster had, what an engine's limits were. Words are matched here and nowhere else; what a word
means for an estimate is decided where the value is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Attention = Literal["full", "causal"]
_OMNI_PATH_GIGABITS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """One configuration over several releases of its publisher's software."""

    count: int
    ratio: float
    """The best rate over the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingNote:
    """What the note of a training run states; None or false: it says nothing of it."""

    out_of_memory: bool
    outlier: bool
    """Whether the source itself calls the value one."""
    adapters: bool
    """Whether adapters are trained and the weights are frozen (LoRA)."""
    fine_tuned: bool
    """Whether the run fine-tunes: many short documents are packed into one sequence."""
    attention: Attention
    """How the source counts the FLOPs of attention."""
    recomputed: bool
    """Whether recomputed FLOPs are counted (hardware FLOPs)."""
    node_size: int | None
    network_gigabits: float | None
    """Network bandwidth of a node, in Gb/s."""
    watts: float | None
    power_limited: bool
    """Whether the note says that power is limited, but not how far."""
    sequence_parallel: bool | None
    zero1_ranks: int | None
    """Ranks over which ZeRO-1 shards the optimizer."""
    hybrid_sharding: bool
    """Whether weights are sharded within groups of ranks that are copies of each other."""
    allocated_memory: bool
    """Whether the peak memory is of tensors alone, without what the allocator reserves."""
    reserved_memory: bool
    """Whether it is what torch's allocator has reserved (as torchtitan prints it), without the
    device's context."""
    pure_bf16: bool
    eight_bit: bool
    """Whether the optimizer's moments have 8 bits."""
    fp32_gradients: bool
    chunked_loss: bool | None
    """Whether the loss is computed in pieces; None: it says nothing of that."""
    frees_gradients: bool
    """Whether the optimizer steps within the backward pass, and gradients are freed there."""
    offloads_activations: bool
    ragged: bool
    """Whether sequences are as long as they are, and neither padded nor packed to one length."""
    saves_inputs: bool
    """Whether its four-bit layers are those of bitsandbytes that kept their inputs."""
    flash_attention: bool | None
    """Whether attention is one kernel; None: it says nothing of that."""
    hierarchical_dispatch: bool
    overlapped_experts: bool
    forced_balance: bool
    """Whether the router is overruled, so that all experts get as many tokens."""
    captured: bool
    """Whether the whole step is captured in CUDA graphs."""
    recompute_modules: frozenset[str]
    """The modules that are recomputed, as Megatron-core names them; empty: none are named."""
    releases: Releases | None


def read_training_note(note: str, path: str = "") -> TrainingNote:
    """The typed values of a training run's note.

    Args:
        note: The cell `note`.
        path: The cells `source` and `source_path`, which may name the network and libraries.

    >>> read_training_note("2 nodes x 4 V100; flops=hw attn_flops=causal").node_size
    4
    """
    words = note.lower()
    nodes = re.search(r"\b\d+ nodes x (\d+)", note)
    watts = re.search(r"\b(\d{3,4}) ?W\b", note)
    parallel = re.search(r"(no |without )?sequence[ -]parallel", words)
    zero1 = re.search(r"\bzero1=(\d+)", note)
    releases = re.search(r"same config across (\d+) releases: ([\d.]+)\.\.([\d.]+)", note)
    modules = re.search(r"recompute_modules=([\w+]+)", note)
    overlap = r"dualpipe|\b(ep|a2a|all-?to-?all|expert)[- ](parallel )?overlap"
    return TrainingNote(
        out_of_memory="outcome=OOM" in note,
        outlier="OUTLIER" in note,
        adapters="task=lora" in note,
        fine_tuned=bool(re.search(r"task=(sft|lora)", note)),
        attention="causal" if "attn_flops=causal" in note else "full",
        recomputed="flops=hw" in note,
        node_size=int(nodes[1]) if nodes else None,
        network_gigabits=_network_gigabits(note, path),
        watts=float(watts[1]) if watts else None,
        power_limited="power-limited" in note,
        sequence_parallel=not parallel[1] if parallel else None,
        zero1_ranks=int(zero1[1]) if zero1 else None,
        hybrid_sharding=bool(re.search(r"\bfsdp ?\+ ?dp\b|\bhsdp\b|hybrid[ -]shard", words)),
        allocated_memory=bool(re.search(r"\b(allocated|active)\b", note)),
        reserved_memory=bool(re.search(r"\breserved\b|\btorchtitan\b", f"{path.lower()} {words}")),
        pure_bf16="pure bf16" in words,
        eight_bit="8-bit" in words,
        fp32_gradients="fp32 grad" in words,
        chunked_loss=_chunked(words),
        frees_gradients=bool(re.search(r"optimizer in (the )?backward|grads? freed in", words)),
        offloads_activations=bool(re.search(r"activations? offload", words)),
        ragged=bool(re.search(r"\b(lengths vary|varying lengths)\b", words)),
        saves_inputs=bool(
            re.search(r"bitsandbytes", f"{path.lower()} {words}")
            and re.search(r"(?<!\d)202[34](?!\d)", words)
        ),
        flash_attention=_fused(words),
        hierarchical_dispatch=bool(re.search(r"\b(deepep|hybridep)\b", words)),
        overlapped_experts=bool(re.search(overlap, words)),
        forced_balance=bool(re.search(r"force[d_ -]*(load[_ -])?balanc", words)),
        captured=bool(re.search(r"(?<!partial )(?<!no )(?<!without )cuda graphs?\b", words)),
        recompute_modules=frozenset(modules[1].split("+") if modules else ()),
        releases=(
            Releases(count=int(releases[1]), ratio=float(releases[3]) / float(releases[2]))
            if releases
            else None
        ),
    )


def _fused(words: str) -> bool | None:
    """Whether these words say that attention is one kernel, or that it is not."""
    if re.search(r"\b(no|not|without|un-?fused) (flash|attention)|attention is not fused", words):
        return False
    return True if "flash" in words else None


def _chunked(words: str) -> bool | None:
    """Whether these words say that the loss is computed in pieces, or that it is not."""
    if re.search(r"not chunked", words):
        return False
    return True if re.search(r"chunked (ce|cross)", words) else None


def _network_gigabits(note: str, path: str) -> float | None:
    cards = re.search(r"(\d+)\s*x\s*(\d+)\s*Gb", note)
    if cards:
        return float(cards[1]) * float(cards[2])
    links = re.search(r"Omni-Path (\d+) links/node", note)
    if links:
        return float(links[1]) * _OMNI_PATH_GIGABITS
    whole = re.search(r"(\d+)\s*Gbps node", path + note)
    return float(whole[1]) if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPool:
    """Workers that only prefill or only decode, as a note states them."""

    workers: int
    tp: int
    dp: int
    ep: int
    batch: float | None
    """Sequences of one group of devices at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNote:
    """What the note of a served run states; None or false: it says nothing of it."""

    noisy: bool
    """Whether the table itself calls the value noisy or an outlier."""
    speculative: bool
    burst: bool
    """Whether all requests were sent at once."""
    conversations: bool
    """Whether prompts and completions were recorded ones, of all lengths."""
    alike: bool
    """Whether all prompts have one length and all completions have."""
    random: bool
    """Whether lengths are spread evenly from next to nothing to twice their mean."""
    requests: float | None
    """How many were sent in all."""
    seen_before: bool
    """Whether an earlier run left the first prompts of this one in the cache."""
    static: bool
    """Whether one batch started together and ended together."""
    served: bool
    """Whether requests came over the network, from clients that wait for their answers."""
    watts: float | None
    cache_tokens: float | None
    """Tokens that the engine says its cache has room for."""
    most_sequences: float | None
    chunk: float | None
    """Prompt tokens of one step at most."""
    attention_tp: int | None
    """Devices that share each sequence's attention."""
    attention_dp: int | None
    """Groups of devices that take whole sequences."""
    ep: int | None
    """Groups among which whole experts are dealt out."""
    disaggregated: bool
    """Whether prompts and completions are computed on devices of their own."""
    prefill: ServedPool | None
    decode: ServedPool | None
    other_attention: bool
    """Whether its layers attend in a way that no column expresses: linear, or to chosen tokens."""


def read_serving_note(note: str) -> ServingNote:
    """The typed values of a served run's note.

    >>> read_serving_note("vLLM, max_num_seqs 128, KV 41,408 tokens").cache_tokens
    41408.0
    """
    words = note.lower()
    drafts = r"\b(eagle|medusa|speculat(ive|ion) with|draft model)\b"
    return ServingNote(
        noisy=bool(re.search(r"\bnoisy\b|outlier", words)),
        speculative=bool(re.search(drafts, words)),
        burst=bool(re.search(r"submitted at once|all at once", words)),
        conversations=bool(re.search(r"\bsharegpt\b|conversations", words)),
        alike=bool(
            re.search(r"\b(equal|fixed|constant) lengths\b|range[-_ ]ratio[ =]1(\.0)?\b", words)
        ),
        random=bool(re.search(r"\brandom lengths\b|range[-_ ]ratio[ =]0(\.0)?\b(?!\.)", words)),
        requests=_number(note, r"\b([\d,]+) (?:requests|prompts)\b"),
        seen_before="first prompts cached" in words,
        served=bool(re.search(r"\bclosed loop\b|\bclients?\b|\bserved\b", words)),
        static=bool(re.search(r"\bstatic\b|prompt_time|token_time|first-token latency", words)),
        watts=read_watts(note),
        cache_tokens=_number(note, r"KV (?:cache )?([\d,]+) tokens"),
        most_sequences=_number(note, r"max[-_]num[-_]seqs[ =:]*(\d+)"),
        chunk=_number(note, r"max[-_]num[-_]batched[-_]tokens[ =:]*(\d+)"),
        attention_tp=_whole(note, r"attention tp=(\d+)"),
        attention_dp=_whole(note, r"attention dp=(\d+)"),
        ep=_whole(note, r"experts ep=(\d+)"),
        disaggregated="disaggregated" in words,
        prefill=_pool(words, "prefill"),
        decode=_pool(words, "decode"),
        other_attention=bool(re.search(r"linear attention|sparse attention", words)),
    )


def _pool(words: str, kind: str) -> ServedPool | None:
    """Workers such as `decode 4 workers x tp8 dp2 ep16 (bs 12)`."""
    shape = rf"{kind} (\d+) workers? x tp(\d+)(?: dp(\d+))?(?: ep(\d+))?(?: \(bs (\d+)\))?"
    found = re.search(shape, words)
    if found is None:
        return None
    workers, tp, dp, ep = (int(text or 1) for text in found.groups()[:4])
    batch = float(found[5]) if found[5] else None
    return ServedPool(workers=workers, tp=tp, dp=dp, ep=ep, batch=batch)


def read_watts(text: str) -> float | None:
    """The power that a text states.

    >>> read_watts("330W"), read_watts("A100")
    (330.0, None)
    """
    return _number(text, r"(\d{3,4}) ?W\b")


def _whole(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _number(text: str, pattern: str) -> float | None:
    found = re.search(pattern, text)
    return float(found[1].replace(",", "")) if found else None
