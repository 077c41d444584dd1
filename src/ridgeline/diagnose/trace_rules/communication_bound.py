"""Communication that compute does not cover: because the links are busy, or because ranks are late.

With several ranks, transfer and skew are told apart exactly (`ranks_together.py`).
With one, the fastest collective of the same name and size is the best guess at a transfer.
`rank-skew` is the part that is waiting, when most is; it names who comes last, and what that
rank's GPU was short of. Where ranks wait for messages of each other (`message_waits.py`) it names
who works longer than the others; what all of them wait is a `pipeline-bubble`.
"""

from __future__ import annotations

import statistics

from ridgeline.diagnose.message_waits import LateRank, waiting_share
from ridgeline.diagnose.ranks_together import RanksTogether
from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.communication.accumulation import SyncedPasses
from ridgeline.trace.communication.stragglers import Stragglers
from ridgeline.trace.critical_path.job_counterfactual import COMPUTE

CAUSES = ("communication-bound", "rank-skew", "pipeline-bubble")
LEADS_FROM = 0.10
LEADS_BY = "worth"
_LEAST_SHARE = 0.03
_PARTLY = 0.1
"""Share of the window's communication that is waiting from which on ranks are spoken of."""
_MOSTLY = 0.5
_ONE_ALONE = 0.5
"""How sure anything is that one rank says about its waits for messages."""
_NOT_ALL = 0.65
"""How sure the late rank is where not all of the job's are here."""
_SHOWN = 8
_COMPUTES = "nothing: it computes"
"""What the GPU of a late rank is short of that works all the time."""


def _exposed_us(fact: RankFacts) -> float:
    return fact.summary.communication_exposed_us


def _waits_in_messages_us(fact: RankFacts) -> float:
    return waiting_share(fact) * _exposed_us(fact)


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find communication that no compute covers."""
    share = reading.share(_exposed_us)
    if share < _LEAST_SHARE:
        return []
    together = reading.together
    total = sum(fact.summary.communication_us for fact in reading.facts)
    found = []
    if together is None and reading.share(_waits_in_messages_us) > _MOSTLY * share:
        return [_for_whom(reading)]
    if together is not None and together.stragglers.waited_us > _PARTLY * total:
        waited = together.stragglers.waited_us / total
        if not together.by_messages:
            found.append(_skew(reading, together, share, waited))
        elif together.late is not None:
            found.append(_late(reading, together, together.late, waited))
        if together.bubble_us > _LEAST_SHARE * reading.window_us:
            found.append(_bubble(reading, together))
    if (
        together is not None
        and reading.saved("communication") < _LEAST_SHARE * reading.window_us
        and found
    ):
        return found
    return [*found, _exposed(reading, together, share, total)]


def _exposed(
    reading: TraceReading, together: RanksTogether | None, share: float, total: float
) -> TraceFinding:
    worst = reading.worst(_exposed_us)
    summary = worst.summary
    floors = [fact.communication_floor_us for fact in reading.facts]
    known = [floor for floor in floors if floor is not None]
    waiting = together.stragglers.waited_us / total if together else None
    guess = 1 - sum(known) / total if waiting is None and len(known) == len(floors) else None
    transfer = reading.saved("communication")
    costs = transfer + (together.skew_us if together else 0.0)
    sent = transfer / costs if costs > 0 else 1.0
    synced = worst.synced
    return reading.finding(
        "communication-bound",
        of=lambda fact: sent * _exposed_us(fact),
        worth_us=transfer if synced is None else transfer * synced.spared_share,
        confidence=0.85 if share >= 0.3 else 0.65,
        summary=f"{percent(share)} of the window is communication with no compute beside it "
        f"({percent(summary.overlap_ratio or 0.0)} of it overlaps)."
        + _passes_words(synced)
        + _waiting_words(waiting, guess)
        + _not_here(together),
        evidence={
            "exposed_us": reading.mean(_exposed_us),
            "communication_us": reading.mean(lambda fact: fact.summary.communication_us),
            "overlap_share": summary.overlap_ratio,
            "skew_wait_share_of_communication": waiting,
            "above_fastest_like_it_share": guess,
            "transfer_us": together.stragglers.transfer_us if together else None,
            "passes_that_send_gradients": synced.passes if synced else None,
        },
        cure=_ONCE
        if synced is not None
        else "Overlap it with compute (bucketed or prefetched collectives, DDP "
        "gradient_as_bucket_view, FSDP prefetch), send less (bf16 gradients, accumulation with "
        "no_sync), or shard within the fast links."
        if (waiting or guess or 0.0) < 0.5
        else "Most of it is waiting for other ranks: load the traces of all ranks together "
        "(ridgeline trace stragglers) and balance the late one.",
    )


_ONCE = (
    "Send gradients after a step's last pass alone: no_sync() of DistributedDataParallel, "
    "set_requires_gradient_sync(False) of FSDP2, around all passes but the last (FSDP then keeps "
    "whole gradients between them)."
)


def _passes_words(synced: SyncedPasses | None) -> str:
    if synced is None:
        return ""
    return (
        f" Each step adds up {synced.passes} passes and sends the gradients of each: "
        f"{percent(synced.spared_share)} of communication is sent too often."
    )


def _waiting_words(waiting: float | None, guess: float | None) -> str:
    if waiting is not None:
        return f" {percent(waiting)} of it is waiting for late ranks."
    if guess is not None and guess > 0.3:
        return (
            f" {percent(guess)} of it is above the fastest collective of the same name and size: "
            "probably waiting for other ranks."
        )
    return ""


def _not_here(together: RanksTogether | None) -> str:
    """Say which ranks of the job nobody gave: one of them may be the late one."""
    missing = together.stragglers.missing_ranks if together else []
    if not missing:
        return ""
    shown = ", ".join(map(str, missing[:_SHOWN])) + (", …" if len(missing) > _SHOWN else "")
    return f" Of the job's ranks {len(missing)} are not here ({shown}); one may be the late one."


def _needed(together: Stragglers, reason: str) -> str:
    if reason == _COMPUTES:
        return ""
    return f", the transfers need {time_text(together.transfer_us)} in all"


def _short(reason: str, short_of: dict[str, float], fact: RankFacts) -> str:
    if reason == _COMPUTES:
        return ", computing meanwhile"
    return f"; its GPU waits mostly for {reason} ({percent(short_of[reason] / fact.window_us)})"


def _skew(
    reading: TraceReading, joined: RanksTogether, share: float, waiting: float
) -> TraceFinding:
    together = joined.stragglers
    late = together.ranks[0]
    fact = next((one for one in reading.facts if one.summary.file == late.file), reading.facts[0])
    short_of = {
        "the host": fact.idle_of_host_us,
        "other streams": fact.idle["dependency"],
        _COMPUTES: fact.summary.compute_us,
    }
    reason = max(short_of, key=lambda name: short_of[name])
    return reading.finding(
        "rank-skew",
        of=lambda one: min(joined.skew_us, one.window_us),
        worth_us=joined.skew_us,
        confidence=_NOT_ALL if together.missing_ranks else 0.85,
        summary=f"Ranks wait for each other: {percent(waiting)} of communication is waiting for "
        f"the last to arrive{_needed(together, reason)}. Rank {late.rank} is last in "
        f"{late.last_arrivals} of {together.matched} collectives{_short(reason, short_of, fact)}."
        + (_IN_TURN if joined.in_turn else "")
        + _not_here(joined),
        evidence={
            "skew_wait_us_all_ranks": together.waited_us,
            "transfer_us": together.transfer_us,
            "skew_wait_share_of_communication": waiting,
            "exposed_communication_share": share,
            "last_rank": late.rank,
            "last_arrivals": late.last_arrivals,
            "collectives": together.matched,
            "late_rank_host_wait_share": fact.idle_of_host_us / fact.window_us,
            "other_ranks_host_wait_share": statistics.fmean(
                one.idle_of_host_us / one.window_us for one in reading.facts if one is not fact
            )
            if len(reading.facts) > 1
            else 0.0,
        },
        where=[] if joined.in_turn else [f"rank {late.rank}"],
        cure="Give ranks the same to do in every step: batches packed to one number of tokens, "
        "experts balanced (auxiliary loss, capacity, more than one replica of a busy one)."
        if joined.in_turn
        else "Find what the late rank does before each collective and even it out: same batch and "
        "sequence lengths, balanced shards, no logging or checkpoints on one rank alone.",
    )


_IN_TURN = (
    " Others are last as well, in turn: what ranks have to compute is not the same from step to "
    "step."
)
_CURABLE = 7 / 8
"""What eight times as many micro-batches save of a bubble."""
_WORKS = {
    COMPUTE: "computes",
    "host": "leaves its GPU idle for its host",
    "loader": "leaves its GPU idle for its loader",
}
_CURES = {
    COMPUTE: "Give it less to do: move layers to other stages (embeddings and the head weigh as "
    "much as layers), cut sequences evenly; where it has as many kernels as the others, "
    "look at that GPU's clock, power and neighbours.",
    "host": "Find what its host does that the others' do not: logging, checkpoints, the loss on "
    "one rank alone.",
    "loader": "Load on every rank alike, or on none of them in the loop: workers and prefetching.",
}


def _late(
    reading: TraceReading, joined: RanksTogether, late: LateRank, waiting: float
) -> TraceFinding:
    rank = late.fact.summary.rank
    missing = joined.stragglers.missing_ranks
    return reading.finding(
        "rank-skew",
        of=lambda one: min(joined.skew_us, one.window_us),
        worth_us=joined.skew_us,
        confidence=_NOT_ALL if missing else 0.85,
        summary=f"Ranks wait for each other's messages: {percent(waiting)} of communication is "
        f"waiting. Rank {rank} {_WORKS[late.by]} for {time_text(late.own_us)}, the others for "
        f"{time_text(late.others_us)} in the median: as quick as they are it would save "
        f"{time_text(joined.skew_us)}." + _not_here(joined),
        evidence={
            "skew_wait_us_all_ranks": joined.stragglers.waited_us,
            "skew_wait_share_of_communication": waiting,
            "late_rank": rank,
            "late_by": late.by,
            "late_rank_us": late.own_us,
            "other_ranks_us": late.others_us,
            "bubble_us": joined.bubble_us,
        },
        where=[f"rank {rank}"],
        cure=_CURES[late.by],
    )


def _for_whom(reading: TraceReading) -> TraceFinding:
    share = reading.share(_waits_in_messages_us)
    return reading.finding(
        "rank-skew",
        of=_waits_in_messages_us,
        worth_us=min(reading.saved("communication"), reading.mean(_waits_in_messages_us)),
        confidence=_ONE_ALONE,
        summary=f"{percent(share)} of the window is waiting in sends and receives, beyond the "
        "fastest like them: for a slow peer, or because a pipeline fills and drains. The peers are "
        "not here, so which of the two it is cannot be told.",
        evidence={
            "waits_in_messages_us": reading.mean(_waits_in_messages_us),
            "exposed_us": reading.mean(_exposed_us),
        },
        cure="Load the traces of all ranks together: that tells a late stage from a bubble. Then "
        "balance the stages, or cut a step into more micro-batches.",
    )


def _bubble(reading: TraceReading, joined: RanksTogether) -> TraceFinding:
    bubble = joined.bubble_us
    return reading.finding(
        "pipeline-bubble",
        of=lambda one: min(bubble, one.window_us),
        worth_us=_CURABLE * bubble,
        confidence=_NOT_ALL if joined.stragglers.missing_ranks else 0.75,
        summary=f"Every rank waits for messages of the others, the busiest one for "
        f"{time_text(bubble)} ({percent(bubble / reading.window_us)} of the window): the pipeline "
        "fills and drains." + _not_here(joined),
        evidence={
            "bubble_us": bubble,
            "skew_us": joined.skew_us,
        },
        cure="Cut a step into more micro-batches: twice as many halve the bubble. Else give each "
        "rank several stages (Interleaved1F1B), or fill the bubble with gradients of weights "
        "(ScheduleInterleavedZeroBubble, ZBVZeroBubble of torch.distributed.pipelining).",
    )
