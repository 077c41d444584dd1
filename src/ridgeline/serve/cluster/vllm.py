"""The same flags, served by vLLM (`--engine vllm`).

Our flags become those of `vllm serve` (written for 0.32, whose parser accepts them), and the
process becomes vLLM's. What vLLM has under another name is translated; what it lacks is refused
with one line, never dropped. Left at their defaults, flags without a counterpart say nothing.

Differences that remain: vLLM's queue has no bound, and it never switches speculation off.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json
from ridgeline.serve.config import EngineConfig, SpeculationConfig

DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `--max-lora-rank` may have."""
_COMPRESS = (
    "vLLM loads such weights ready-made: write them with `ridgeline compress` and serve those"
)
_LACKS: dict[str, str] = {
    "device": "vLLM runs on the device that it was built for; leave it out",
    "group_size": _COMPRESS,
    "kv_layout": "vLLM's cache is always paged; leave it out",
    "kv_recent": "vLLM keeps all tokens; leave it out",
    "kv_first": "vLLM keeps all tokens; leave it out",
    "batching": "vLLM always batches continuously; leave it out",
    "max_waiting": "vLLM's queue has no bound; leave it out, or bound it in front of vLLM",
    "chunked_prefill": "vLLM always cuts long prompts into chunks; leave it out",
    "itl_target_seconds": "vLLM has no such target; lower --max-tokens-per-step instead",
    "packed_cache": "vLLM keeps nothing packed; leave it out",
    "threads": "vLLM reads them from VLLM_CPU_OMP_THREADS_BIND; set that instead",
    "debug": "vLLM has no such checks; leave it out",
    "step_log": "vLLM writes no such file; leave it out",
}
"""Field → what to do instead."""


def run(
    config: EngineConfig,
    *,
    host: str,
    port: int,
    names: Sequence[str],
    revision: str | None = None,
    api_keys: Sequence[str] = (),
    media_domains: Sequence[str] = (),
    execute: Callable[[str, list[str], dict[str, str]], object] = os.execve,
) -> None:
    """Become vLLM, and do not return.

    Raises:
        InputError: vLLM is not installed, or a flag has no counterpart there.
    """
    words = command(
        config,
        host=host,
        port=port,
        names=names,
        revision=revision,
        media_domains=media_domains,
    )
    environment = dict(os.environ)
    if len(api_keys) > 1:
        raise InputError("--engine vllm takes one API key; --api-key-file has several")
    if api_keys:  # not as an argument, which every user of the machine could read
        environment["VLLM_API_KEY"] = api_keys[0]
    program = shutil.which("vllm")
    if program is None:
        raise InputError("vllm is not installed; run: pip install vllm")
    execute(program, words, environment)


def command(
    config: EngineConfig,
    *,
    host: str,
    port: int,
    names: Sequence[str],
    revision: str | None = None,
    media_domains: Sequence[str] = (),
) -> list[str]:
    """The command line, beginning with `vllm serve`.

    Raises:
        InputError: A flag has no counterpart there.
    """
    _refuse_what_it_lacks(config)
    words = ["vllm", "serve", config.model, "--host", host, "--port", str(port)]
    words += ["--served-model-name", *names, "--dtype", DTYPES[config.dtype]]
    if config.tokenizer is not None:
        words += ["--tokenizer", config.tokenizer]
    if revision is not None:
        words += ["--revision", revision]
    if media_domains:
        words += ["--allowed-media-domains", *media_domains]
    words += ["--block-size", str(config.block_size), "--seed", str(config.seed)]
    words += ["--max-num-batched-tokens", str(config.max_tokens_per_step)]
    words += ["--max-num-seqs", str(config.max_sequences), "--scheduling-policy", config.order]
    if config.kv_bytes is None:
        words += ["--gpu-memory-utilization", str(config.memory_share)]
    else:
        # vLLM's are of each GPU, ours of all.
        words += ["--kv-cache-memory-bytes", str(config.kv_bytes // config.ranks)]
    if config.max_length is not None:
        words += ["--max-model-len", str(config.max_length)]
    if config.tp > 1:
        words += ["--tensor-parallel-size", str(config.tp)]
    if config.pp > 1:
        words += ["--pipeline-parallel-size", str(config.pp)]
    if config.expert_parallel:
        words.append("--enable-expert-parallel")
    if config.weights == "fp8":
        words += ["--quantization", "fp8"]
    if config.kv_dtype == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    words.append("--enable-prefix-caching" if config.prefix_cache else "--no-enable-prefix-caching")
    if not config.graphs:
        words.append("--enforce-eager")
    if config.trust_remote_code:
        words.append("--trust-remote-code")
    if config.speculation is not None:
        words += ["--speculative-config", json.dumps(_speculation(config.speculation))]
    if config.adapters:
        words += _adapters(config)
    return words


def _refuse_what_it_lacks(config: EngineConfig) -> None:
    plain = EngineConfig(model=config.model)
    for name, instead in _LACKS.items():
        value = getattr(config, name)
        if value != getattr(plain, name):
            raise InputError(f"--engine vllm has no {_flag(name)} {value}: {instead}")
    if config.weights in ("int8", "int4"):
        raise InputError(f"--engine vllm has no --weights {config.weights}: {_COMPRESS}")
    if config.kv_dtype == "int8":
        raise InputError("--engine vllm has no --kv-dtype int8; fp8 it has")
    if config.order not in ("fcfs", "priority"):
        raise InputError(f"--engine vllm has no --order {config.order}; it has fcfs and priority")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _speculation(wanted: SpeculationConfig) -> dict[str, object]:
    if wanted.kind == "draft":
        found: dict[str, object] = {"method": "draft_model", "model": wanted.path}
    elif wanted.kind == "ngram":
        found = {"method": "ngram", "prompt_lookup_max": wanted.longest_match}
    else:
        raise InputError(
            "--engine vllm cannot draft with Ridgeline's heads; use a draft model or ngram"
        )
    return {**found, "num_speculative_tokens": wanted.num_drafts}


def _adapters(config: EngineConfig) -> list[str]:
    rank = max(_rank(Path(path)) for path in config.adapters.values())
    allowed = [one for one in LORA_RANKS if one >= rank]
    if not allowed:
        raise InputError(f"vLLM serves LoRA ranks up to {LORA_RANKS[-1]}, not {rank}")
    words = ["--enable-lora", "--max-loras", str(config.max_adapters)]
    words += ["--max-lora-rank", str(allowed[0]), "--lora-modules"]
    return words + [f"{name}={path}" for name, path in config.adapters.items()]


def _rank(folder: Path) -> int:
    """The largest of an adapter."""
    path = folder / "adapter_config.json"
    found = read_json(path, dict[str, Any])
    try:
        return int(max([found["r"], *(found.get("rank_pattern") or {}).values()]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not say the adapter's rank: {error}") from None
