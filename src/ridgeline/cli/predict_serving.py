"""`ridgeline predict serving` says what one replica of a model will do under a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ridgeline.cli.engine_options import KeptTokensOptions
from ridgeline.cli.forecast_options import (
    AnswerTokens,
    Cache,
    EngineClass,
    Gpu,
    GuessOptions,
    Model,
    PromptTokens,
    TensorParallel,
    Weights,
)
from ridgeline.cli.show import Json
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.plan.serving.coefficients import Calibration
    from ridgeline.plan.serving.published import ServedLoad
    from ridgeline.plan.serving.question import ServingQuestion
    from ridgeline.records.estimate import CoefficientChange
    from ridgeline.records.serving_plan import ServingEstimate, Speculation


def predict_serving(
    *,
    model: Model,
    gpu: Gpu,
    prompt: PromptTokens,
    answer: AnswerTokens,
    tp: TensorParallel = 1,
    attention_dp: Annotated[
        int, typer.Option(help="Groups of --tp devices that take whole requests and share experts.")
    ] = 1,
    ep: Annotated[int, typer.Option(help="Groups among which whole experts are dealt out.")] = 1,
    weights: Weights = "bf16",
    cache: Cache = "",
    users: Annotated[
        float | None, typer.Option(help="Clients that each wait for their answer.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second, open loop.")] = None,
    engine: EngineClass = "python",
    drafts: Annotated[
        int | None, typer.Option(help="Tokens drafted per step; needs --acceptance.")
    ] = None,
    acceptance: Annotated[
        float | None, typer.Option(help="Chance that a draft is accepted, 0 to 1.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="RUN.json", help="Load points of your own, one to three."),
    ] = None,
    draft_model: Annotated[
        str, typer.Option(help="What drafts. Default: drafts cost nothing (prompt look-up).")
    ] = "",
    guesses: GuessOptions,
    kept_tokens: KeptTokensOptions,
    json: Json = False,
) -> None:
    """Latency and throughput of one replica, what bounds its step, and how sure that is."""
    from ridgeline.cli.show import show_answer
    from ridgeline.models import load_model
    from ridgeline.plan.serving.engines import engine as engine_called
    from ridgeline.plan.serving.estimate import estimate_serving
    from ridgeline.plan.serving.guessing import speculation_of
    from ridgeline.plan.serving.question import replica_of
    from ridgeline.plan.simulate.drafting import drafting_of
    from ridgeline.report.views.plan_serving import serving_estimate_document

    if min(prompt, answer, tp) < 1:
        raise InputError("--prompt, --answer and --tp must be 1 or more")
    engine_called(engine)
    replica = replica_of(
        load_model(model),
        gpu,
        tp=tp,
        attention_dp=attention_dp,
        ep=ep,
        weights=weights,
        cache=cache,
        engine=engine,
        prompt=prompt,
        completion=answer,
        kept=kept_tokens.kept(),
    )
    calibration, changes = _calibrated(replica, measured)
    found = estimate_serving(replica, _load(users, rate), calibration)
    found = msgspec.structs.replace(found, calibrated=changes)
    if drafts is not None or acceptance is not None or draft_model:
        if guesses.draft_tree or guesses.accuracies:
            raise InputError("--draft-tree, of heads, goes with none of the options of a chain")
        gain = _speculation(replica, found, drafts, acceptance, draft_model)
        found = msgspec.structs.replace(found, speculation=gain)
    elif drafting := drafting_of(
        draft_tree=guesses.draft_tree, accuracies=guesses.accuracies, cost=0.0
    ):
        gain = speculation_of(replica, drafting, running=found.running)
        found = msgspec.structs.replace(found, speculation=gain)
    show_answer(found, serving_estimate_document(found), json=json)


def _calibrated(
    replica: ServingQuestion, measured: Path | None
) -> tuple[Calibration, list[CoefficientChange]]:
    """The shipped calibration, or the one that explains the user's own load points."""
    from ridgeline.plan.serving.coefficients import read_calibration

    shipped = read_calibration()
    if measured is None:
        return shipped, []
    from ridgeline.plan.serving.measured import calibrate, read_measured

    return calibrate(read_measured(measured, replica), shipped)


def _speculation(
    replica: ServingQuestion,
    found: ServingEstimate,
    drafts: int | None,
    acceptance: float | None,
    draft_model: str,
) -> Speculation:
    from ridgeline.models import load_model
    from ridgeline.plan.serving.guessing import speculation_gain
    from ridgeline.records.serving_plan import Speculation

    if drafts is None or acceptance is None:
        raise InputError("speculation needs both --drafts and --acceptance")
    draft = load_model(draft_model) if draft_model else None
    gain = speculation_gain(
        replica, running=found.running, num_drafts=drafts, acceptance=acceptance, draft=draft
    )
    return Speculation(
        draft=draft.name if draft else "",
        num_drafts=drafts,
        acceptance=acceptance,
        tokens_per_step=gain.tokens_per_step,
        speedup=gain.speedup,
        best_num_drafts=gain.best_num_drafts,
    )


def _load(users: float | None, rate: float | None) -> ServedLoad:
    from ridgeline.plan.serving.published import ServedLoad

    if users is not None and rate is not None:
        raise InputError("give --users or --rate, not both")
    value = users if users is not None else rate
    if value is not None and value <= 0:
        raise InputError("--users and --rate must be above 0")
    if users is not None:
        return ServedLoad(kind="closed", number=users)
    if rate is not None:
        return ServedLoad(kind="open", number=rate)
    return ServedLoad(kind="saturated")
