"""What a simulation is of: which engine on what, how many, and how requests get to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.batching.policies import Batching, Limits, Order
from ridgeline.batching.scaling.policies import Policy
from ridgeline.batching.scaling.settings import Scaling, policy_of
from ridgeline.errors import InputError
from ridgeline.plan.simulate.drafting import COST, Drafting, drafting_of
from ridgeline.plan.simulate.engine_time import EngineTime

RouterName = Literal["prefix", "least-open", "round-robin"]
"""The rule that picks a replica. prefix: where the request starts soonest (`batching/routing.py`),
as `serve` does. least-open: where the fewest requests are under way. round-robin: in turn."""

MOST_LENGTH = 2**31 - 1
"""Tokens of a sequence at most, where a cache of those kept does not limit it."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field for field flags of `ridgeline simulate serving`, and what `--what-if` may change."""

    gpu: str = ""
    """Empty where the steps of a measured engine are given."""
    tp: int = 1
    weights: str = "bf16"
    cache: str = ""
    """The dtype of keys and values; empty: what such checkpoints come with."""
    engine: str = "python"
    """Class of engines that the published runs tell of."""
    replicas: int = 1
    """Replicas of the fleet; where it scales, those to begin with."""
    router: RouterName = "prefix"
    kv_blocks: int | None = None
    """KV blocks of one replica; None: what its memory holds."""
    block_size: int = 16
    max_length: int | None = None
    """Tokens of a sequence at most; None: what the cache holds."""
    max_tokens_per_step: int = 2048
    max_sequences: int = 256
    max_waiting: int = 1024
    batching: Batching = "continuous"
    dynamic_delay_seconds: float = 0.05
    """How long the oldest request waits for a dynamic batch to fill."""
    order: Order = "fcfs"
    prefix_cache: bool = True
    chunked_prefill: bool = True
    drafts: int = 0
    """Tokens that are guessed for every sequence and step; 0: none."""
    acceptance: float = 0.7
    """Chance that a draft is accepted if those before it were."""
    draft_cost: float = COST
    """Time of guessing one token for all, over that of a step without drafts."""
    draft_tree: int = 0
    """Tokens that are guessed as a tree, in place of a chain of `drafts`; 0: none."""
    accuracies: str = ""
    """How often each head's first, second, … guess is right, of a tree: 0.6x0.15x0.08,0.4x0.12."""
    kv_recent: int | None = None
    """Each token sees so many last ones only, and the first `kv_first`; None: all."""
    kv_first: int = 4
    prefill_replicas: int = 0
    """The replicas that only compute prompts; 0: all do both."""
    prefill_gpu: str = ""
    """The device of those, with much arithmetic where decoding wants bandwidth; empty: `gpu`."""
    prefill_tp: int = 0
    """Devices of one of those; 0: `tp`."""
    link_gigabytes_per_second: float = 25.0
    """Between replicas, for keys and values of prefilled prompts (1e9 bytes)."""
    startup_seconds: float = 60.0
    """Until a replica that the autoscaler starts takes requests."""

    @property
    def kept(self) -> KeptTokens | None:
        """What sequences keep of their tokens; None: all."""
        if self.kv_recent is None:
            return None
        return KeptTokens(recent=self.kv_recent, first=self.kv_first)

    def drafting(self, seed: int) -> Drafting | None:
        """Which guesses are made; None: none.

        Raises:
            InputError: What is said of them does not go together.
        """
        return drafting_of(
            drafts=self.drafts,
            acceptance=self.acceptance,
            draft_tree=self.draft_tree,
            accuracies=self.accuracies,
            cost=self.draft_cost,
            seed=seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEngine:
    """How fast one replica's engine is, and what its memory holds."""

    time: EngineTime
    kv_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A deployment in the numbers that the simulation needs."""

    deployment: Deployment
    time: EngineTime
    kv_blocks: int
    kv_bytes_per_token: float
    """Bytes of keys and values per token, moved when a prompt is handed over."""
    scaling: Scaling | None
    seed: int
    prefill: ReplicaEngine | None = None
    """The engine of replicas that only compute prompts; None: all are alike."""
    paced: bool = False
    """Whether prompts beside decodes are cut as `ridgeline serve` does; published engines fill
    steps."""
    named: bool = True
    """Whether blocks are found again by their content; off where that changes nothing."""
    policy: Callable[[], Policy] | None = None
    """Makes what decides of a fleet that scales; None: what `scaling` says."""
    assumed: tuple[str, ...] = ()
    """What is assumed of devices, engine and cache; of an engine as measured, nothing."""

    def engine_of(self, index: int) -> ReplicaEngine:
        """Times and memory of one replica; those that only compute prompts come first."""
        if self.prefill is not None and index < self.deployment.prefill_replicas:
            return self.prefill
        return ReplicaEngine(time=self.time, kv_blocks=self.kv_blocks)

    def limits_of(self, index: int) -> Limits:
        """The limits of one replica's scheduler."""
        asked, blocks = self.deployment, self.engine_of(index).kv_blocks
        held = blocks * asked.block_size if asked.kept is None else MOST_LENGTH
        return Limits(
            max_tokens_per_step=asked.max_tokens_per_step,
            max_sequences=asked.max_sequences,
            max_length=asked.max_length or held,
            max_waiting=asked.max_waiting,
            batching=asked.batching,
            dynamic_delay_seconds=asked.dynamic_delay_seconds,
            order=asked.order,
            chunked_prefill=asked.chunked_prefill,
        )


def check_deployment(asked: Deployment, scaling: Scaling | None) -> None:
    """Refuse what cannot be, naming the flag."""
    counts = ("tp", "replicas", "block_size", "max_tokens_per_step", "max_sequences", "max_waiting")
    for name in (*counts, "kv_blocks", "max_length"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise InputError(f"{_flag(name)} {value}: at least 1 is needed")
    for name in ("prefill_replicas", "prefill_tp"):
        if getattr(asked, name) < 0:
            raise InputError(f"{_flag(name)} {getattr(asked, name)}: has to be 0 or more")
    asked.drafting(seed=0)
    if asked.kept is not None and asked.prefill_replicas:
        raise InputError("--kv-recent: what it keeps is not handed over; leave --prefill-replicas")
    if asked.kept is not None and not asked.chunked_prefill:
        raise InputError("--kv-recent computes prompts in chunks; leave out --no-chunked-prefill")
    for name in ("startup_seconds", "dynamic_delay_seconds"):
        if not 0.0 <= getattr(asked, name) < float("inf"):
            raise InputError(f"{_flag(name)} {getattr(asked, name)}: has to be 0 or more")
    if asked.link_gigabytes_per_second <= 0.0:
        raise InputError(f"--link {asked.link_gigabytes_per_second:g}: has to be above 0")
    if asked.prefill_replicas and asked.prefill_replicas >= asked.replicas:
        raise InputError(
            f"--prefill-replicas {asked.prefill_replicas} of --replicas {asked.replicas}: at least"
            " one has to be left to decode"
        )
    for name in ("prefill_gpu", "prefill_tp"):
        if getattr(asked, name) and not asked.prefill_replicas:
            raise InputError(
                f"{_flag(name)} {getattr(asked, name)}: say --prefill-replicas N, how many of"
                " --replicas only compute prompts"
            )
    if asked.prefill_replicas and scaling is not None:
        raise InputError("--prefill-replicas: a fleet that scales does both on every replica")
    if scaling is not None:
        _check_scaling(scaling, asked.replicas)


def _check_scaling(scaling: Scaling, replicas: int) -> None:
    if not scaling.minimum <= replicas <= scaling.maximum:
        raise InputError(
            f"{replicas} replicas to begin with are not within {scaling.minimum}:{scaling.maximum}"
        )
    if scaling.open_per_replica <= 0.0 or not 0.0 < scaling.kv_target <= 1.0:
        raise InputError("--scale-target: requests above 0, a share of blocks up to 1")
    if scaling.on == "slo" and scaling.ttft_seconds is None and scaling.itl_seconds is None:
        raise InputError("--scale-on slo: say what a miss is, with --scale-ttft or --scale-itl")
    try:
        policy_of(scaling)
    except ValueError as error:
        raise InputError(f"--scale-on {scaling.on}: {error}") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
