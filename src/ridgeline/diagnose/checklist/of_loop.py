"""What a profile shows of the loop: loaders, memory, accumulation, and how it was timed."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.diagnose.checklist.evidence import (
    Answer,
    OfProfile,
    ProfileEvidence,
    done,
    done_if,
    not_applicable,
    not_done,
)
from ridgeline.diagnose.verdict import FULL

_NO_LOADER = "the script iterates no DataLoader"
_HARDLY = 0.02
"""Share of the step below which waiting for batches is nothing."""
_P99_CALLS = 100
"""A 99th percentile of fewer calls is their slowest."""


def profiled(found: ProfileEvidence) -> Answer | None:
    """Somebody looked before changing anything."""
    profile = found.profile
    return done(f"{profile.steps} steps of {quantity.shown('seconds', profile.step_seconds.p50)}")


def limit_known(found: ProfileEvidence) -> Answer | None:
    """How far the step is from what the hardware allows."""
    share = found.profile.limit_fraction
    if share <= 0:
        return None
    return done(f"the hardware needs {quantity.percent(share)} of the step")


def utilisation_known(found: ProfileEvidence) -> Answer | None:
    """Model FLOPs over the peak."""
    if found.profile.mfu is None:
        return None
    return done(f"MFU is {quantity.percent(found.profile.mfu)}")


def warmed_up(found: ProfileEvidence) -> Answer | None:
    """First steps are not timed, and the others are steady."""
    profile = found.profile
    if not profile.steady:
        return not_done(f"not steady after {profile.warmup_steps} steps of warm-up")
    if profile.warmup_steps <= 0:
        return not_done("the first steps are among the timed ones")
    return done(f"{profile.warmup_steps} steps left out, then steady")


def loader_workers(found: ProfileEvidence) -> Answer | None:
    """Batches are made beside the step."""
    return _of_loaders(found) or done_if(
        all(one.num_workers > 0 for one in found.profile.loaders), _wait(found)
    )


def prefetch(found: ProfileEvidence) -> Answer | None:
    """Workers make batches ahead."""
    first = _of_loaders(found)
    if first is not None:
        return first
    loaders = found.profile.loaders
    if any(one.num_workers == 0 for one in loaders):
        return not_done("a loader without workers makes nothing ahead")
    ahead = [one.prefetch_factor for one in loaders]
    known = [one for one in ahead if one is not None]
    if len(known) < len(ahead):
        return None
    return done_if(min(known) >= 1, f"each worker makes {min(known)} batches ahead")


def persistent_workers(found: ProfileEvidence) -> Answer | None:
    """Workers outlive an epoch."""
    loaders = [one for one in found.profile.loaders if one.num_workers]
    if not loaders:
        return not_applicable("no loader has workers") if found.profile.models else None
    if all(one.persistent_workers for one in loaders):
        return done("persistent_workers=True")
    again = sum(one.restarts for one in loaders)
    if again:
        return not_done(f"workers started {again} times anew while watched")
    return not_done("workers start anew with each epoch")


def _nothing_is_copied(found: ProfileEvidence) -> Answer | None:
    """What is said of copies where no model was seen on a GPU."""
    if not found.profile.models:
        return None
    return not_applicable("nothing is copied: every model is on the CPU")


def pinned_memory(found: ProfileEvidence) -> Answer | None:
    """Copies to the GPU start in memory that its engine reads."""
    if not found.on_gpu:
        return _nothing_is_copied(found)
    pageable = found.profile.habit("pageable_copy").calls
    if pageable > 0:
        return not_done(f"{pageable:.3g} copies per step out of memory that is not pinned")
    loaders = found.profile.loaders
    if loaders and all(one.pin_memory for one in loaders):
        return done("pin_memory=True, and no pageable copy was seen")
    return None


def non_blocking_copies(found: ProfileEvidence) -> Answer | None:
    """Only memory that is pinned can be copied while the host goes on."""
    if not found.on_gpu:
        return _nothing_is_copied(found)
    pageable = found.profile.habit("pageable_copy").calls
    if pageable > 0:
        return not_done(f"{pageable:.3g} copies per step are pageable, which the host waits for")
    return None


def set_to_none(found: ProfileEvidence) -> Answer | None:
    """Gradients are dropped, not filled with zeros."""
    optimizers = found.profile.optimizers
    if not optimizers:
        return None
    kept = [one.name for one in optimizers if one.zeroes_in_place]
    return done_if(not kept, f"{kept[0]} zeroes in place" if kept else "gradients are dropped")


def checkpointing(found: ProfileEvidence) -> Answer | None:
    """Activations are recomputed where memory asks for it, and only there."""
    if not found.profile.models:
        return None
    memory = _memory_share(found)
    if any(model.checkpointing for model in found.profile.models):
        return done(
            "a part of the forward runs again in backward, and doctor does not find it needless"
        )
    if memory is None:
        return None
    shown = f"the peak is {quantity.percent(memory)} of the memory"
    if memory >= FULL:
        return not_done(f"{shown}, and nothing is recomputed")
    return not_applicable(f"{shown}: nothing has to be recomputed")


def accumulation(found: ProfileEvidence) -> Answer | None:
    """A batch larger than the memory, in parts."""
    backwards = found.profile.settings.backwards_per_step
    if backwards > 1.5:
        return done(f"{backwards:.3g} backwards per step")
    memory = _memory_share(found)
    if backwards <= 0 or memory is None:
        return None
    if memory >= FULL:
        return not_done(f"one backward per step, at {quantity.percent(memory)} of the memory")
    return not_applicable(
        f"one backward per step, and its batch takes {quantity.percent(memory)} of the memory"
    )


def evaluation_without_gradients(found: ProfileEvidence) -> Answer | None:
    """Forwards of an evaluation keep nothing for a backward."""
    calls = found.profile.habit("evaluation").calls
    return done(f"{calls:.3g} forwards per step without gradients") if calls > 0 else None


def finite(found: ProfileEvidence) -> Answer | None:
    """Losses and gradients are numbers."""
    if not found.profile.losses:
        return None
    bad = found.profile.non_finite
    return done_if(bad == 0, f"{bad} of {len(found.profile.losses)} steps were not finite")


def tail_measured(found: ProfileEvidence) -> Answer | None:
    """Enough calls for a 99th percentile."""
    profile = found.profile
    if profile.steps < _P99_CALLS:
        return not_done(f"{profile.steps} calls were timed; a 99th percentile needs {_P99_CALLS}")
    spread = profile.step_seconds
    return done(f"P99 is {quantity.shown('seconds', spread.p99)} over {profile.steps} calls")


def _of_loaders(found: ProfileEvidence) -> Answer | None:
    """Why a box about loaders does not apply."""
    if not found.profile.loaders:
        return not_applicable(_NO_LOADER) if found.profile.models else None
    waiting = sum(one.wait_seconds for one in found.profile.loaders)
    if (
        any(one.num_workers == 0 for one in found.profile.loaders)
        and waiting < _HARDLY * found.profile.step_seconds.p50
    ):
        return not_applicable(f"{_wait(found)}: nothing to make ahead")
    return None


def _wait(found: ProfileEvidence) -> str:
    loaders = found.profile.loaders
    waiting = sum(one.wait_seconds for one in loaders)
    workers = min(one.num_workers for one in loaders)
    return f"{workers} workers, and {quantity.shown('seconds', waiting)} of waiting for a batch"


def _memory_share(found: ProfileEvidence) -> float | None:
    profile = found.profile
    if profile.device_memory_bytes <= 0:
        return None
    return profile.peak_memory_bytes / profile.device_memory_bytes


OF_LOOP: dict[str, OfProfile] = {
    "profiled": profiled,
    "limit-known": limit_known,
    "utilisation-known": utilisation_known,
    "warmed-up": warmed_up,
    "loader-workers": loader_workers,
    "prefetch": prefetch,
    "persistent-workers": persistent_workers,
    "pinned-memory": pinned_memory,
    "non-blocking-copies": non_blocking_copies,
    "set-to-none": set_to_none,
    "checkpointing": checkpointing,
    "accumulation": accumulation,
    "evaluation-without-gradients": evaluation_without_gradients,
    "finite-loss": finite,
    "served-warmed-up": warmed_up,
    "tail-measured": tail_measured,
}
