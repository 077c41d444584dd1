"""What `ridgeline generate`, `bench decode` and `packed list` show."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ridgeline import quantity
from ridgeline.records.served import DecodeBench, Generation
from ridgeline.report.document import (
    Block,
    Column,
    DataTable,
    Lines,
    Paragraph,
    Phrase,
    ReportDocument,
    words,
)


def generation_document(found: Generation) -> ReportDocument:
    """Every prompt with its completion, and how long it took."""
    shown: list[Block] = []
    for one in found.answers:
        ttft, tpot = one.ttft_seconds, one.tpot_seconds
        first = "" if ttft is None else f", first token {quantity.seconds(ttft)}"
        then = "" if tpot is None else f", then {quantity.seconds(tpot)} each"
        cached = f", {one.cached_tokens} from the prefix cache" if one.cached_tokens else ""
        shown.append(Paragraph((Phrase(one.prompt, "dim"), one.text, "\n")))
        said = f"{one.output_tokens} tokens after {one.prompt_tokens}{cached}{first}{then}"
        shown.append(Paragraph(f"{said}; ended by {one.finish_reason}\n", "dim"))
    rate = f"{found.output_tokens_per_second:.1f} tokens/s"
    loaded = f"loaded in {quantity.seconds(found.load_seconds)}, {found.dtype} on {found.device}"
    took = f"{rate} over {quantity.seconds(found.seconds)}, {loaded}"
    shown.append(Paragraph(took, "dim"))
    if found.draft_rounds:
        length = 1.0 + found.accepted_tokens / found.draft_rounds
        guessed = f"{found.drafted_tokens} drafts in {found.draft_rounds} rounds"
        shown.append(Paragraph(f"{guessed}, {length:.2f} tokens a round", "dim"))
    return ReportDocument("Generation", shown)


def decode_bench_document(found: DecodeBench) -> ReportDocument:
    """Tokens per second, and the reads of memory beside what this machine can read."""
    step, fastest, outside = (
        quantity.seconds(value)
        for value in (found.step_seconds, found.fastest_step_seconds, found.outside_model_seconds)
    )
    read = quantity.memory(found.weight_bytes + found.kv_bytes)
    rate, most = (
        quantity.scaled(value, "B/s")
        for value in (found.read_bytes_per_second, found.machine_bytes_per_second)
    )
    speed = f"{found.tokens_per_second:.1f} tokens/s: {step} a step of {found.batch}"
    share = f"{quantity.percent(found.share)} of the {most} that this machine read"
    lines = [
        f"{speed} (fastest {fastest}), {outside} of it outside the model",
        f"{read} read a step = {rate}, {share} in the same {found.rounds} rounds",
        f"{found.dtype}, weights {found.weights}, {found.threads} threads on {found.device}",
        *(f"kernel of {kernel}" for kernel in found.kernels),
    ]  # fmt: skip
    return ReportDocument("Decoding", [Lines(lines)])


def packed_document(found: dict[str, Any]) -> ReportDocument:
    """The models that are kept packed; `found` is the JSON document of `packed list`."""
    held, most = quantity.memory(found["bytes"]), quantity.memory(found["most_bytes"])
    rows = [
        (
            Path(one.path).name,
            quantity.memory(one.bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used)),
        )
        for one in found["entries"]
    ]
    title = f"{held} of at most {most} in {found['folder']}"
    columns = (words("entry"), Column("size"), words("last used"))
    return ReportDocument("Packed models", [DataTable(columns, rows, title=title)])
