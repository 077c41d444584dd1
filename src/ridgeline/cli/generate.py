"""`ridgeline generate MODEL --prompt TEXT` completes prompts with the engine, without a server."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli import engine_options as options
from ridgeline.cli import server_options as naming
from ridgeline.cli.output_options import Json


def generate(
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
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = "model",
    group_size: options.GroupSize = 128,
    kv_dtype: options.KvDtype = "model",
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    expert_parallel: options.ExpertParallel = False,
    kv_layout: options.KvLayout = "paged",
    kv_recent: options.KvRecent = None,
    kv_first: options.KvFirst = 4,
    kv_bytes: options.KvBytes = None,
    memory_share: options.MemoryShare = 0.9,
    block_size: options.BlockSize = 16,
    max_length: options.MaxLength = None,
    max_tokens_per_step: options.MaxTokensPerStep = 2048,
    max_sequences: options.MaxSequences = 256,
    prefix_cache: options.PrefixCache = True,
    speculative: options.Speculative = None,
    num_drafts: options.NumDrafts = 4,
    draft_tree: options.DraftTree = None,
    speculate_always: options.SpeculateAlways = False,
    adapter: options.Adapter = None,
    compiled: options.Compiled = False,
    packed_cache: options.PackedCache = True,
    threads: options.Threads = None,
    debug: options.Debug = False,
    trust_remote_code: options.TrustRemoteCode = False,
    json: Json = False,
) -> None:
    """Complete prompts with any Hugging Face causal language model, and say how long it took."""
    from ridgeline.cli.show import progress, show_answer

    config = options.engine_config(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        weights=weights,
        group_size=group_size,
        kv_dtype=kv_dtype,
        tp=tp,
        pp=pp,
        expert_parallel=expert_parallel,
        kv_layout=kv_layout,
        kv_recent=kv_recent,
        kv_first=kv_first,
        kv_bytes=kv_bytes,
        memory_share=memory_share,
        block_size=block_size,
        max_length=max_length,
        max_tokens_per_step=max_tokens_per_step,
        max_sequences=max_sequences,
        prefix_cache=prefix_cache,
        speculative=speculative,
        num_drafts=num_drafts,
        draft_tree=draft_tree,
        speculate_always=speculate_always,
        adapter=adapter,
        compiled=compiled,
        packed_cache=packed_cache,
        threads=threads,
        debug=debug,
        trust_remote_code=trust_remote_code,
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
