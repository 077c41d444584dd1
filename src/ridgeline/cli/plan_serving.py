"""`ridgeline plan serving` says which GPUs to buy for a load and its targets, and how many."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ridgeline.cli.engine_options import KeptTokensOptions
from ridgeline.cli.forecast_options import (
    AnswerTokens,
    ChainOptions,
    EngineClass,
    Model,
    PromptTokens,
)
from ridgeline.cli.option_groups import refuse_typed
from ridgeline.cli.show import Json
from ridgeline.errors import InputError

_OF_A_CHAIN = {"acceptance": "give --drafts N too"}
_OF_GUESSES = {"draft_cost": "give --drafts N or --draft-tree N too"}


def plan_serving(
    context: typer.Context,
    *,
    model: Model,
    users: Annotated[float | None, typer.Option(help="Requests under way at once.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second.")] = None,
    ttft: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean time to the first token: 500ms, 2s.")
    ] = None,
    itl: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean time per further token: 30ms.")
    ] = None,
    ttft_p99: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="99th percentile to the first token, simulated: 800ms."),
    ] = None,
    itl_p99: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="99th percentile between tokens, simulated: 100ms."),
    ] = None,
    prompt: PromptTokens = 1024,
    answer: AnswerTokens = 256,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE", help="A device to allow; repeatable. Default: all."),
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Option(help="Weights to allow, as --gpu. Default: bf16 and fp8.")
    ] = None,
    engine: EngineClass = "python",
    headroom: Annotated[
        float, typer.Option(help="The share of what replicas can carry that is left for bursts.")
    ] = 0.2,
    split: Annotated[
        bool,
        typer.Option("--split", help="Plan replicas for prompts beside others that decode, too."),
    ] = False,
    link: Annotated[
        float, typer.Option(help="With --split: between replicas, for keys and values, in GB/s.")
    ] = 25.0,
    guesses: ChainOptions,
    kept_tokens: KeptTokensOptions,
    json: Json = False,
) -> None:
    """The cheapest deployment within the targets, how sure that is, and what would change it."""
    from ridgeline.cli.show import show_answer
    from ridgeline.cost.serving.weight_formats import weight_format
    from ridgeline.models import load_model
    from ridgeline.plan.serving.engines import engine as engine_called
    from ridgeline.plan.serving.plan import ServingTask
    from ridgeline.plan.serving.plan import plan_serving as plan
    from ridgeline.plan.simulate.drafting import drafting_of
    from ridgeline.report.views.plan_serving import serving_plan_document

    if min(prompt, answer) < 1 or any(value is not None and value <= 0 for value in (users, rate)):
        raise InputError("--prompt and --answer must be 1 or more, --users and --rate above 0")
    if not 0.0 < link < float("inf"):
        raise InputError(f"--link {link:g}: give GB/s above 0")
    engine_called(engine)
    allowed = tuple(weight_format(word) for word in weights or ("bf16", "fp8"))
    drafting = drafting_of(
        drafts=guesses.drafts,
        acceptance=guesses.acceptance,
        draft_tree=guesses.draft_tree,
        accuracies=guesses.accuracies,
        cost=guesses.draft_cost,
    )
    if not guesses.drafts:
        refuse_typed(context, _OF_A_CHAIN, "it is of a chain of guesses")
    if drafting is None:
        refuse_typed(context, _OF_GUESSES, "nothing is guessed")
    task = ServingTask(
        model=load_model(model),
        prompt=prompt,
        completion=answer,
        users=users,
        rate=rate,
        ttft_seconds=None if ttft is None else seconds_of("--ttft", ttft),
        itl_seconds=None if itl is None else seconds_of("--itl", itl),
        ttft_p99_seconds=None if ttft_p99 is None else seconds_of("--ttft-p99", ttft_p99),
        itl_p99_seconds=None if itl_p99 is None else seconds_of("--itl-p99", itl_p99),
        gpus=tuple(gpu or ()),
        weights=allowed,
        engine=engine,
        headroom=headroom,
        split=split,
        link_bytes_per_second=link * 1e9,
        kept=kept_tokens.kept(),
        drafting=drafting,
    )
    found = plan(task)
    show_answer(found, serving_plan_document(found), json=json)


def seconds_of(option: str, text: str) -> float:
    """The seconds of a time such as 500ms, 0.5s or 2s; a bare number is seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|)\s*", text)
    value = float(found[1]) * (1e-3 if found[2] == "ms" else 1.0) if found else 0.0
    if value <= 0:
        raise InputError(f"{option} {text}: give a time above 0, as 500ms or 2s")
    return value
