"""What a profile shows of data parallelism, and of a model that answers."""

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

_LEFTOVERS = (
    "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip
_HARMLESS = ("", "0", "WARN", "VERSION")
_HARDLY = 0.05
"""Share of the step below which waiting for collectives is little."""


def one_process_a_device(found: ProfileEvidence) -> Answer | None:
    """DDP or FSDP, not threads of one process."""
    wrapper = _wrapper(found)
    if wrapper == "DataParallel":
        return not_done("DataParallel copies the model to every GPU in every step")
    alone = _alone(found)
    if alone is not None:
        return alone
    return None if wrapper is None else done(f"{wrapper} on {found.profile.world_size} ranks")


def no_sync(found: ProfileEvidence) -> Answer | None:
    """Gradients travel once per step, not once per micro-batch."""
    alone = _alone(found)
    if alone is not None:
        return alone
    backwards = found.profile.settings.backwards_per_step
    if backwards < 1.5:
        return not_applicable("one backward per step: nothing is accumulated")
    return None


def bucket_views(found: ProfileEvidence) -> Answer | None:
    """Gradients live in the buckets that are sent."""
    return _of_ddp(found) or done_if(
        any(model.ddp_bucket_view for model in found.profile.models),
        f"gradient_as_bucket_view is {any(m.ddp_bucket_view for m in found.profile.models)}",
    )


def no_search(found: ProfileEvidence) -> Answer | None:
    """No walk over the graph for parameters without a gradient."""
    return _of_ddp(found) or done_if(
        not any(model.ddp_find_unused for model in found.profile.models),
        f"find_unused_parameters is {any(m.ddp_find_unused for m in found.profile.models)}",
    )


def sharded(found: ProfileEvidence) -> Answer | None:
    """States are split over ranks."""
    alone = _alone(found)
    if alone is not None:
        return alone
    wrapper = _wrapper(found) or ""
    return done(f"{wrapper} splits the states") if "FullySharded" in wrapper else None


def overlapped(found: ProfileEvidence) -> Answer | None:
    """Little of the step waits for collectives."""
    alone = _alone(found)
    if alone is not None:
        return alone
    shown = f"{_waiting(found)} of the step waits for collectives"
    return done(shown) if _share(found) < _HARDLY else None


def less_sent(found: ProfileEvidence) -> Answer | None:
    """Compressed gradients are only worth it where the network is waited for."""
    alone = _alone(found)
    if alone is not None:
        return alone
    if _share(found) < _HARDLY:
        return not_applicable(f"{_waiting(found)} of the step waits for collectives")
    return None


def balanced(found: ProfileEvidence) -> Answer | None:
    """No rank is waited for, as far as all of them were measured."""
    alone = _alone(found)
    if alone is not None:
        return alone
    if len(found.profiles) < found.profile.world_size:
        return None
    return done(f"{len(found.profiles)} ranks were measured, and none is behind")


def nothing_left_on(found: ProfileEvidence) -> Answer | None:
    """Variables that help to find errors, and slow every collective."""
    variables = found.profile.environment.variables
    on = [
        f"{name}={variables[name]}"
        for name in _LEFTOVERS
        if variables.get(name, "").upper() not in _HARMLESS
    ]
    return done_if(not on, " ".join(on) if on else f"none of {', '.join(_LEFTOVERS)} is on")


def inference_mode(found: ProfileEvidence) -> Answer | None:
    """Nothing is kept for a backward that never comes."""
    recorded = found.profile.settings.records_gradients
    return done_if(
        not recorded, "forwards record gradients" if recorded else "no forward records gradients"
    )


def evaluation_mode(found: ProfileEvidence) -> Answer | None:
    """Dropout is off, and batch norms use what they learned."""
    training = [model.name for model in found.profile.models if model.training]
    if not found.profile.models:
        return None
    return done_if(
        not training, f"{training[0]} is in training mode" if training else "model.eval() is set"
    )


def no_torchscript(found: ProfileEvidence) -> Answer | None:
    """No part of the model is a TorchScript program."""
    if not found.profile.models:
        return None
    scripted = [model.name for model in found.profile.models if model.scripted]
    return done_if(
        not scripted, f"{scripted[0]} is a TorchScript program" if scripted else "none is"
    )


def _alone(found: ProfileEvidence) -> Answer | None:
    if found.profile.world_size > 1:
        return None
    return not_applicable("one process: there is nobody to agree with")


def _of_ddp(found: ProfileEvidence) -> Answer | None:
    """Why a box about DDP does not apply."""
    alone = _alone(found)
    wrapper = _wrapper(found)
    if alone is not None or wrapper == "DistributedDataParallel":
        return alone
    return not_applicable(f"the model is wrapped in {wrapper or 'nothing'}, not in DDP")


def _wrapper(found: ProfileEvidence) -> str | None:
    return next((model.wrapper for model in found.profile.models if model.wrapper), None)


def _share(found: ProfileEvidence) -> float:
    waiting = found.profile.phases.get("communication")
    return 0.0 if waiting is None else waiting.p50 / found.profile.step_seconds.p50


def _waiting(found: ProfileEvidence) -> str:
    return quantity.percent(_share(found))


OF_RANKS: dict[str, OfProfile] = {
    "one-process-a-device": one_process_a_device,
    "no-sync": no_sync,
    "bucket-views": bucket_views,
    "no-search-for-unused": no_search,
    "sharded-states": sharded,
    "overlap": overlapped,
    "gradient-compression": less_sent,
    "balanced-ranks": balanced,
    "nccl-without-leftovers": nothing_left_on,
    "inference-mode": inference_mode,
    "evaluation-mode": evaluation_mode,
    "no-torchscript": no_torchscript,
}
