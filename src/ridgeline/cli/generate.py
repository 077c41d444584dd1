"""`ridgeline generate MODEL --prompt TEXT` completes prompts with the engine, without a server."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict

from ridgeline.cli import engine_options as options
from ridgeline.cli import server_options as naming
from ridgeline.cli.show import Json


def generate(
    *,
    model: options.Model,
    prompt: Annotated[
        list[str], typer.Option(metavar="TEXT", help="A prompt; several are answered at once.")
    ],
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 64,
    temperature: Annotated[
        float, typer.Option(help="The temperature; 0 takes the most likely token each time.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Only the k most likely; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only the most likely that add up to p.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Only those above p times the most likely.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="A penalty on repetitions; 1 is none.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same completion.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A text that ends a completion.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Always generate max-tokens.")
    ] = False,
    n: Annotated[int, typer.Option("-n", help="Completions of each prompt.")] = 1,
    beams: Annotated[int, typer.Option(help="Beam search with so many; 0: none.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put prompts through the chat template.")
    ] = False,
    use_adapter: Annotated[
        str, typer.Option(metavar="NAME", help="Which of the --adapter to use.")
    ] = "",
    tokenizer: naming.TokenizerFolder = None,
    device_options: options.DeviceOptions,
    engine_options: options.EngineOptions,
    batch_options: options.BatchOptions,
    adapter: options.Adapter = None,
    json: Json = False,
) -> None:
    """Complete prompts with any Hugging Face causal language model, and say how long it took."""
    from ridgeline.cli.show import progress, show_answer

    config = options.engine_config(
        model,
        tokenizer=tokenizer,
        adapter=adapter,
        **asdict(device_options),
        **asdict(engine_options),
        **asdict(batch_options),
    )
    options.require_engine()
    from ridgeline.report.views.served import generation_document
    from ridgeline.serve.engine.offline import generate as run
    from ridgeline.serve.messages import Sampling

    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        beams=beams,
    )
    with progress() as on_progress:
        found = run(
            config, prompt, sampling, n=n, adapter=use_adapter, chat=chat, on_progress=on_progress
        )
    show_answer(found, generation_document(found), json=json)
