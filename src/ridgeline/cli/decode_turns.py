"""Joins what compresses and judges with the engine that serves: models decoding in turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.compress.evaluate.judge import Bench, Say
    from ridgeline.records.compression import Decoding

KV_BYTES = 256 * 2**20
"""The cache of each model: enough for one sequence of a few hundred tokens."""


def bench_on(device: str) -> Bench:
    """A function that decodes with `ridgeline serve`'s engine on that device."""

    def bench(directories: Sequence[Path], say: Say) -> list[Decoding | str]:
        from ridgeline.cli.engine_options import engine_config
        from ridgeline.serve.engine.decode_in_turns import decode_in_turns

        configs = [
            engine_config(str(directory), device=device, kv_bytes=str(KV_BYTES))
            for directory in directories
        ]
        return decode_in_turns(configs, say=say)

    return bench
