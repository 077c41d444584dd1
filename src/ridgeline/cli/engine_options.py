"""Options of the commands that run or simulate an engine, and the configuration they make.

Names and defaults are those of `EngineConfig`'s fields.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ridgeline.cli.option_groups import OptionGroup
from ridgeline.errors import InputError, MissingExtra
from ridgeline.records.input_file import read_json

if TYPE_CHECKING:
    from ridgeline.batching.kept_tokens import KeptTokens
    from ridgeline.serve.config import EngineConfig, SpeculationConfig

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Directory of a Hugging Face model, or a hub id.")
]
BlockSize = Annotated[int, typer.Option(help="Tokens of a KV block.")]
ItlTargetSeconds = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="The longest step beside answers; chunks of prompts become as small as it takes.",
    ),
]
Adapter = Annotated[
    list[str] | None,
    typer.Option("--adapter", metavar="NAME=DIR", help="A LoRA adapter; repeatable."),
]


class KeptTokensOptions(OptionGroup, frozen=True, kw_only=True):
    """Which tokens each one sees, where not all before it."""

    kv_recent: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Let each token see the N last ones only: a bounded cache, other answers.",
        ),
    ] = None
    kv_first: Annotated[
        int, typer.Option(help="Tokens at the beginning seen beside --kv-recent.")
    ] = 4

    def kept(self) -> KeptTokens | None:
        """What the options say; None: tokens see all before them."""
        from ridgeline.batching.kept_tokens import KeptTokens

        recent = self.kv_recent
        return None if recent is None else KeptTokens(recent=recent, first=self.kv_first)


class DeviceOptions(OptionGroup, frozen=True, kw_only=True):
    """Where an engine runs, and how it holds weights, keys and values."""

    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where it runs.")] = "auto"
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"], typer.Option(help="The dtype of activations.")
    ] = "auto"
    weights: Annotated[
        Literal["model", "int8", "int4", "fp8", "w8a8"],
        typer.Option(help="How weights are held; model: as they are stored."),
    ] = "model"
    group_size: Annotated[int, typer.Option(help="Weights that share a scale in int4.")] = 128
    kv_dtype: Annotated[
        Literal["model", "fp8", "int8"], typer.Option(help="How keys and values are held.")
    ] = "model"
    kv_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The size of the KV cache: 2GiB, 500MB or bytes."),
    ] = None
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Decode through torch.compile (CPU).")
    ] = False
    packed_cache: Annotated[
        bool, typer.Option(help="Keep packed weights on disk for the next start (CPU).")
    ] = True
    threads: Annotated[
        int | None, typer.Option(help="Threads on a CPU. Default: the cores it may use.")
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False


class EngineOptions(KeptTokensOptions, frozen=True, kw_only=True):
    """How an engine is shared out among processes, what it caches, and what it guesses."""

    tp: Annotated[
        int,
        typer.Option(metavar="N", help="Processes that each keep a share of every layer.", min=1),
    ] = 1
    pp: Annotated[
        int, typer.Option(metavar="N", help="Processes that each keep some of the layers.", min=1)
    ] = 1
    expert_parallel: Annotated[
        bool,
        typer.Option("--expert-parallel", help="With --tp: deal a mixture's experts out whole."),
    ] = False
    kv_layout: Annotated[
        Literal["paged", "contiguous", "dynamic"],
        typer.Option(help="How the KV cache is laid out; all but paged are for comparison."),
    ] = "paged"
    memory_share: Annotated[
        float, typer.Option(help="The share of the device's memory to use.")
    ] = 0.9
    speculative: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[:PATH]",
            help="What guesses tokens ahead: ngram, draft:MODEL, heads:FOLDER or eagle:FOLDER.",
        ),
    ] = None
    num_drafts: Annotated[int, typer.Option(help="Tokens guessed at a time.")] = 4
    draft_tree: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Heads, or an EAGLE head, guess a tree of N tokens, not a chain."
        ),
    ] = None
    speculate_always: Annotated[
        bool, typer.Option("--speculate-always", help="Speculate even where it measures slower.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Check every cache at each step.")] = False


class BatchOptions(OptionGroup, frozen=True, kw_only=True):
    """What is put into one step."""

    block_size: BlockSize = 16
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of prompt and completion together.")
    ] = None
    max_tokens_per_step: Annotated[int, typer.Option(help="The most tokens of one step.")] = 2048
    max_sequences: Annotated[int, typer.Option(help="The most sequences that run at once.")] = 256
    prefix_cache: Annotated[
        bool, typer.Option(help="Compute equal beginnings of prompts once.")
    ] = True


class AdmissionOptions(BatchOptions, frozen=True, kw_only=True):
    """What is put into one step, and who comes first."""

    max_waiting: Annotated[int, typer.Option(help="Requests in a queue; beyond: 429.", min=1)] = (
        1024
    )
    order: Annotated[
        Literal["fcfs", "priority", "shortest-prompt", "longest-prefix"],
        typer.Option(help="Who goes first; fcfs: who came first."),
    ] = "fcfs"
    chunked_prefill: Annotated[
        bool, typer.Option(help="Compute long prompts in pieces between decodes.")
    ] = True


_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)}


def engine_config(
    model: str,
    *,
    kv_bytes: str | None = None,
    speculative: str | None = None,
    num_drafts: int = 4,
    draft_tree: int | None = None,
    speculate_always: bool = False,
    adapter: list[str] | None = None,
    **fields: Any,
) -> EngineConfig:
    """The options as a configuration.

    Raises:
        InputError: A value that its option does not know; names the option and the values.
    """
    import msgspec

    from ridgeline.models.folder import check_model_folder
    from ridgeline.serve.config import EngineConfig

    wanted = {
        "model": model,
        "kv_bytes": None if kv_bytes is None else size_bytes("--kv-bytes", kv_bytes),
        "adapters": dict(_adapter(one) for one in adapter or []),
        **fields,
    }
    try:
        config = msgspec.convert(wanted, EngineConfig)
    except msgspec.ValidationError as error:
        raise InputError(_named(error)) from None
    _check_positive(config)
    check_model_folder(Path(model))
    if config.tokenizer is not None:
        check_model_folder(Path(config.tokenizer))
    if draft_tree is not None and not (speculative or "").startswith(("heads", "eagle")):
        raise InputError(
            f"--draft-tree {draft_tree} needs --speculative heads:FOLDER or eagle:FOLDER"
        )
    if speculative is None:
        if speculate_always:
            raise InputError("--speculate-always needs --speculative, which says what guesses")
        return config
    speculation = _speculation(speculative, num_drafts, draft_tree, always=speculate_always)
    if speculation.kind == "draft":
        check_model_folder(Path(speculation.path))
    if speculation.kind == "heads":
        cure = "train draft heads with: ridgeline draft-heads"
        read_json(Path(speculation.path) / "heads.json", dict[str, Any], cure=cure)
    published = (Path(speculation.path) / "config.json").exists()
    if speculation.kind == "eagle" and not published:
        cure = "train an EAGLE head with: ridgeline draft-heads --form eagle"
        read_json(Path(speculation.path) / "eagle.json", dict[str, Any], cure=cure)
    return msgspec.structs.replace(config, speculation=speculation)


def size_bytes(option: str, text: str) -> int:
    """The bytes of a size as people write it.

    >>> size_bytes("--kv-bytes", "1.5GiB"), size_bytes("--kv-bytes", "20MB")
    (1610612736, 20000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", text)
    if found is None or found[2] not in _UNITS:
        raise InputError(f"{option} {text}: give bytes, or a size such as 500MB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def _adapter(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not (name and sign and path):
        raise InputError(f"--adapter {text}: give it as NAME=DIRECTORY")
    return name, path


def _speculation(
    text: str, num_drafts: int, tree: int | None, *, always: bool
) -> SpeculationConfig:
    from ridgeline.serve.config import SpeculationConfig

    kind, _, path = text.partition(":")
    if kind not in ("ngram", "draft", "heads", "eagle"):
        raise InputError(
            f"--speculative {text}: give ngram, draft:MODEL, heads:FOLDER or eagle:FOLDER"
        )
    if (kind == "ngram") == bool(path):
        wants = "takes no path" if path else "needs a path, as in draft:MODEL or heads:FOLDER"
        raise InputError(f"--speculative {text}: {kind} {wants}")
    if num_drafts < 1:
        raise InputError(f"--num-drafts {num_drafts}: at least 1 is needed")
    if tree is not None and tree < 1:
        raise InputError(f"--draft-tree {tree}: at least 1 is needed")
    return SpeculationConfig(
        kind=kind,  # type: ignore[arg-type]
        path=path,
        num_drafts=num_drafts,
        tree=tree,
        always=always,
    )


def _check_positive(config: EngineConfig) -> None:
    for name in ("block_size", "max_tokens_per_step", "max_sequences", "group_size", "tp", "pp"):
        if getattr(config, name) < 1:
            raise InputError(f"{_option(name)} {getattr(config, name)}: at least 1 is needed")
    if config.kv_first < 0:
        raise InputError(f"--kv-first {config.kv_first}: at least 0 is needed")
    for name in ("max_length", "threads", "kv_recent"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise InputError(f"{_option(name)} {value}: at least 1 is needed")
    target = config.itl_target_seconds
    if target is not None and not 0.0 < target < float("inf"):
        raise InputError(f"--itl-target-seconds {target:g}: give seconds above 0")
    if target is not None and not config.chunked_prefill:
        raise InputError("--itl-target-seconds needs chunks; leave out --no-chunked-prefill")
    if not 0.0 < config.memory_share <= 1.0:
        raise InputError(f"--memory-share {config.memory_share}: give a share above 0, up to 1")


def _named(error: Exception) -> str:
    """`Invalid enum value 'x' - at `$.dtype`` with the option's name and its values."""
    from ridgeline.serve.config import EngineConfig

    text = str(error)
    found = re.search(r"^(.*) - at `\$\.(\w+)`", text)
    if found is None:
        return text
    field = EngineConfig.__annotations__.get(found[2], "")
    known = re.search(r"Literal\[(.*?)\]", str(field))
    values = f"; one of {known[1]}" if known else ""
    return f"{_option(found[2])}: {found[1]}{values}".replace('"', "").replace("'", "")


def _option(field: str) -> str:
    return "--" + field.replace("_", "-")


def require_engine() -> None:
    """Raise `MissingExtra` where what an engine needs is not installed."""
    import importlib.util

    for module in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "serve")


def check_counts(**counts: int) -> None:
    """Raise `InputError` for the first option that is below one."""
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{_option(name)} {count}: at least 1 is needed")
