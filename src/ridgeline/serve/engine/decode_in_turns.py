"""Several models decoding in turns, so that their speeds compare although the machine wavers.

All are loaded and warmed up first. Each round is some decode steps of every model, in an order that
turns around from round to round, then a plain read of memory; round i of one model stands beside
round i of another.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from ridgeline.errors import InputError
from ridgeline.records.compression import Decoding
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.decode_bench import (
    Seen,
    decode,
    decoding,
    read_buffer,
    read_bytes_per_step,
    read_rate,
)
from ridgeline.serve.engine.engine import Engine


def decode_in_turns(
    configs: Sequence[EngineConfig],
    *,
    batch: int = 1,
    context: int = 64,
    rounds: int = 12,
    steps: int = 8,
    say: Callable[[str], None] = lambda _: None,
) -> list[Decoding | str]:
    """Decode greedily with every model in turn.

    Args:
        configs: One per model; all stay in memory together.
        batch: Sequences of each.
        context: Tokens of each prompt.
        rounds: 6 or more, for an interval at 95 %.
        steps: Of decoding in a round, of each model.
        say: Told what is under way.

    Returns:
        In the order of `configs`: figures, or why the model cannot be served.
    """
    engines: dict[int, Engine] = {}
    answers: list[Decoding | str] = []
    for place, config in enumerate(configs):
        say(f"loading {config.model} to decode")
        try:
            engines[place] = decoding(config, batch, context, rounds * steps)
            answers.append("")
        except InputError as error:
            answers.append(str(error))
    if not engines:
        return answers
    seen = {place: Seen() for place in engines}
    buffer = read_buffer(next(iter(engines.values())).model.device)
    reads = []
    order = list(engines)
    for number in range(rounds):
        say(f"decoding, round {number + 1} of {rounds}")
        for place in order:
            decode(engines[place], steps, seen[place])
        order.reverse()
        reads.append(read_rate(buffer))
    for place, engine in engines.items():
        answers[place] = _decoding(engine, seen[place], steps, reads, (batch, context))
    return answers


def _decoding(
    engine: Engine, seen: Seen, steps: int, reads: list[float], load: tuple[int, int]
) -> Decoding:
    batch, context = load
    kv_bytes = round(statistics.fmean(seen.contexts) * engine.ready.ledger.bytes_per_token)
    return Decoding(
        tokens_per_second=batch / statistics.median(seen.steps),
        step_seconds=tuple(
            statistics.median(seen.steps[start : start + steps])
            for start in range(0, len(seen.steps), steps)
        ),
        held_bytes=engine.model.weight_bytes(),
        read_bytes=read_bytes_per_step(engine.model, batch) + kv_bytes,
        machine_bytes_per_second=statistics.median(reads),
        dtype=str(engine.model.dtype).removeprefix("torch."),
        device=engine.model.device.type,
        threads=torch.get_num_threads(),
        batch=batch,
        context=context,
    )
