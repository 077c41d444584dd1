"""`ridgeline loadtest URL` measures how an OpenAI-compatible server bears load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ridgeline.cli.load_options import LoadOptions
from ridgeline.cli.show import Html, Json

if TYPE_CHECKING:
    from ridgeline.serve.loadtest.settings import LoadSettings


def loadtest(
    *,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The server, such as http://host:8000.")
    ],
    model: Annotated[
        str | None, typer.Option(help="The model to ask. Default: the first that the server names.")
    ] = None,
    api: Annotated[
        Literal["completions", "chat"], typer.Option(help="Which of its interfaces.")
    ] = "completions",
    api_key: Annotated[
        str | None, typer.Option(envvar="RIDGELINE_API_KEY", help="Sent as a bearer token.")
    ] = None,
    load: LoadOptions,
    sweep: Annotated[bool, typer.Option("--sweep", help="Raise the rate to saturation.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="The seed. Default: another each time, so that no cache is warm."),
    ] = None,
    token_ids: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="Prompts of token ids, not words.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one completion.")] = 600.0,
    max_send_lag: Annotated[
        float, typer.Option(help="Seconds at p99, above which no figures are given.")
    ] = 0.01,
    max_cpu_share: Annotated[
        float, typer.Option(help="The share of a core above which no figures are given.")
    ] = 0.9,
    html: Html = None,
    json: Json = False,
) -> None:
    """Send load to a server and measure it; refuses when it is itself the bottleneck."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.report.views.loadtest import load_test_document

    settings = _settings(
        {
            "url": url,
            "model": model,
            "api": api,
            "api_key": api_key,
            **load.fields(),
            "sweep": sweep,
            "seed": seed,
            "timeout_seconds": timeout,
            "max_send_lag_seconds": max_send_lag,
            "max_cpu_share": max_cpu_share,
        },
        token_ids=token_ids,
    )
    _require_client()
    from ridgeline.serve.loadtest.run import load_test

    with progress() as on_progress:
        found = load_test(settings, on_progress)
    document = load_test_document(found)
    show_answer(found, document, json=json, html=html)
    if found.interrupted:
        raise typer.Exit(130)


def _settings(fields: dict[str, Any], *, token_ids: str | None) -> LoadSettings:
    """The flags as a typed value."""
    from ridgeline.serve.loadtest.settings import LoadSettings

    return LoadSettings(**fields, token_ids=_id_range(token_ids))


def _require_client() -> None:
    from importlib.util import find_spec

    from ridgeline.errors import MissingExtra

    if find_spec("aiohttp") is None:
        raise MissingExtra("aiohttp", "serve")


def _id_range(text: str | None) -> tuple[int, int] | None:
    from ridgeline.errors import InputError

    if text is None:
        return None
    low, found, high = text.partition(":")
    if not (found and low.isdecimal() and high.isdecimal()):
        raise InputError(f"--token-ids {text}: give LOW:HIGH, as 100:32000")
    return int(low), int(high)
