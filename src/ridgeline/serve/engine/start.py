"""Everything an engine is made of, built in the order in which memory is taken."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.serve.adapters.adapters import Adapters
from ridgeline.serve.cache import KvPool
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.memory import memory_ledger
from ridgeline.serve.engine.ranks import OtherRanks
from ridgeline.serve.engine.runner import Runner
from ridgeline.serve.engine.share import DRAFT, RankShare, build_share, rank_device, set_threads
from ridgeline.serve.engine.speculating import Speculating, build_speculating
from ridgeline.serve.fetching import with_folders
from ridgeline.serve.messages import MemoryRow, Ready
from ridgeline.serve.model.batch import StepInputs
from ridgeline.serve.model.load import device_of
from ridgeline.serve.model.loaded import LoadedModel
from ridgeline.serve.pipeline_parallel.stages import check_stages
from ridgeline.serve.tensor_parallel.reading import check_cuts
from ridgeline.serve.vision.model import sees_images
from ridgeline.serve.weights import is_compressed, kernels_of


@dataclass(frozen=True, slots=True)
class Parts:
    """What one engine is made of."""

    loaded: LoadedModel
    pool: KvPool
    cache: BlockCache
    limits: Limits
    scheduler: Scheduler
    adapters: Adapters
    runner: Runner
    speculating: Speculating | None
    inputs: StepInputs
    ready: Ready
    ranks: OtherRanks | None
    """The processes that have the other shares of the model; None: there is one share."""


def build_parts(config: EngineConfig) -> Parts:
    """Load the model, then give the KV cache what is left.

    Raises:
        InputError: The model cannot be served as configured.
    """
    check_kept(config)
    config = with_folders(config)
    set_threads(config)
    if config.expert_parallel and config.tp == 1:
        raise InputError("--expert-parallel: deals experts out over --tp N ranks; give --tp 2, say")
    if config.kept is not None:
        sys.stderr.write(
            "ridgeline: --kv-recent: tokens see some of those before them only; answers are not"
            " those of the whole model (ridgeline evaluate --kv-recent says how far off)\n"
        )
    if config.ranks == 1:
        return _parts(config, build_share(config, group=None), None)
    check_cut(config)
    ranks = OtherRanks(config, rank_device(config, 0))
    try:
        with ranks.in_step("the model was loaded"):
            share = build_share(config, group=ranks.group)
            share.runner.lead(ranks)
            return _parts(config, share, ranks)
    except BaseException:
        ranks.close(at_once=True)
        raise


def check_cut(config: EngineConfig) -> None:
    """Raise `InputError` for what does not go together with a model cut over several ranks."""
    option = config.cut
    if config.adapters:
        raise InputError(f"{option}: LoRA adapters are not cut over ranks; leave out --adapters")
    if config.expert_parallel and config.graphs and device_of(config).type == "cuda":
        raise InputError(
            "--expert-parallel: how many tokens a rank's experts get is not known before they come,"
            " which no CUDA graph takes; add --no-graphs"
        )
    if config.compiled:
        raise InputError(f"{option}: --compiled is for one process; leave out one of the two")
    if config.speculation is not None and config.speculation.kind in ("heads", "eagle"):
        raise InputError(
            f"{option}: draft heads read the model's head, which is cut; use --speculative ngram or"
            " draft:MODEL"
        )
    if is_compressed(config.model):
        raise InputError(
            f"{option}: compressed-tensors checkpoints are not cut over ranks; serve the model that"
            " it was made from, with --weights int8 or int4"
        )
    from transformers import AutoConfig

    from ridgeline.serve.model.recurrent import has_states

    with read_by_library(config.model, what="config.json"):
        about = AutoConfig.from_pretrained(config.model, trust_remote_code=config.trust_remote_code)
        if sees_images(about):
            raise InputError(f"{option}: models that see images are not cut over ranks")
        if has_states(about):
            raise InputError(
                f"{option}: models whose layers keep states ({about.model_type}) are not cut over"
                " ranks"
            )
        where, trusted = Path(config.model), config.trust_remote_code
        if config.tp > 1:
            whole = config.expert_parallel
            check_cuts(about, where, config.tp, trust_remote_code=trusted, whole_experts=whole)
        if config.pp > 1:
            check_stages(about, where, config.pp, trust_remote_code=trusted)


def check_kept(config: EngineConfig) -> None:
    """Raise `InputError` for what does not go together with keeping only some tokens."""
    if config.kept is None:
        return
    option = f"--kv-recent {config.kv_recent}"
    if config.kv_layout != "paged":
        raise InputError(f"{option} gives blocks back, so it needs --kv-layout paged")
    if config.compiled:
        raise InputError(f"{option}: --compiled sees all tokens; leave out one of the two")
    if not config.chunked_prefill:
        raise InputError(f"{option} computes prompts in chunks; leave out --no-chunked-prefill")


def _kept(config: EngineConfig) -> str:
    kept = config.kept
    if kept is None:
        return ""
    most = kept.most_blocks(config.block_size)
    return f"; {kept.first} first and {kept.recent} recent tokens, at most {most} blocks a sequence"


def _parts(config: EngineConfig, share: RankShare, ranks: OtherRanks | None) -> Parts:
    loaded, room, rows = share.loaded, share.room, share.rows
    drafts = build_speculating(config, share.loaded, share.small, share.head, room.num_blocks)
    if drafts is not None:
        # The drafter says itself what it holds.
        rows = [*(row for row in rows if row.what != DRAFT), *drafts.drafter.memory()]
    cache = BlockCache(
        room.num_blocks,
        config.block_size,
        prefix=config.prefix_cache,
        layout=config.kv_layout,
        max_length=room.max_length,
        kept=config.kept,
        states=loaded.recurrent is not None,
    )
    limits = Limits(
        max_tokens_per_step=config.max_tokens_per_step,
        max_sequences=room.max_sequences,
        max_length=room.max_length,
        max_waiting=config.max_waiting,
        batching=config.batching,
        order=config.order,
        chunked_prefill=config.chunked_prefill,
    )
    if room.state_bytes:
        note = f"of {room.max_sequences} sequences, before and after a step; no prefix is shared"
        rows = [*rows, MemoryRow(what="states", bytes=room.state_bytes, note=note)]
    kv = MemoryRow(
        what="kv blocks",
        bytes=share.pool.bytes,
        note=f"{room.num_blocks} × {config.block_size} tokens; {share.pool.form.name}"
        + _kept(config)
        + (f"; {loaded.positions}" if loaded.positions else ""),
    )
    ready = Ready(
        model=config.model,
        ledger=memory_ledger(config, loaded, rows, kv, room),
        max_length=room.max_length,
        vocab=loaded.vocab,
        dtype=str(loaded.dtype).removeprefix("torch."),
        kv_form=share.pool.form.name,
        adapters=share.adapters.names,
        kernels=kernels_of(loaded.model),
        slower=_slower(loaded),
        sees_images=loaded.tower is not None,
    )
    return Parts(
        loaded=loaded,
        pool=share.pool,
        cache=cache,
        limits=limits,
        scheduler=Scheduler(limits, cache),
        adapters=share.adapters,
        runner=share.runner,
        speculating=drafts,
        inputs=StepInputs(
            max_sequences=config.max_sequences,
            block_size=config.block_size,
            device=loaded.device,
            kept=config.kept,
            states=loaded.recurrent is not None,
        ),
        ready=ready,
        ranks=ranks,
    )


def _slower(loaded: LoadedModel) -> tuple[str, ...]:
    """Why this model does not compute on the fastest paths there are."""
    apart = loaded.layer_path.startswith("one by one")
    return (*([f"layers {loaded.layer_path}"] if apart else []), *loaded.slower)
