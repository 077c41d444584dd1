"""Hold the serving predictions against LLM-Inference-Bench, which no fit has seen.

    python -m bench.serving_found_later ALL_RESULTS.csv

ALL_RESULTS.csv is `Plots/All_results.csv` of github.com/argonne-lcf/LLM-Inference-Bench (Chitty-
Venkata et al., arXiv 2411.00136): offline batches of 1 to 256 sequences, as many tokens out as in,
16 bits, engines of the first half of 2024. Writes `docs/results/serving_found_later.md`. Rows of
one configuration are joined by their median; its throughput counts tokens in and out together.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from ridgeline.plan.serving.validate import validate_serving
from ridgeline.records.validation import ServingValidation

PAGE = Path(__file__).parents[1] / "docs/results/serving_found_later.md"
COLUMNS = (
    "source", "source_path", "model", "params_b", "layers", "hidden", "ffn", "heads", "kv_heads",
    "head_dim", "vocab", "experts", "topk", "gpu", "n_gpus", "tp", "pp", "weight_dtype",
    "kv_dtype", "isl", "osl", "batch_or_concurrency", "metric_name", "metric_value",
    "from_memory", "note",
)  # fmt: skip
SIZES: dict[str, tuple[object, ...]] = {
    "mistralai/Mistral-7B-v0.1": (7.24, 32, 4096, 14336, 32, 8, 128, 32000, "", ""),
    "meta-llama/Meta-Llama-3-8B": (8.03, 32, 4096, 14336, 32, 8, 128, 128256, "", ""),
    "meta-llama/Llama-2-7b-hf": (6.74, 32, 4096, 11008, 32, 32, 128, 32000, "", ""),
    "meta-llama/Llama-2-70b-hf": (68.98, 80, 8192, 28672, 64, 8, 128, 32000, "", ""),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, 32, 4096, 14336, 32, 8, 128, 32000, 8, 2),
    "Qwen/Qwen2-7B": (7.62, 28, 3584, 18944, 28, 4, 128, 152064, "", ""),
    "meta-llama/Meta-Llama-3-70B": (70.55, 80, 8192, 28672, 64, 8, 128, 128256, "", ""),
    "Qwen/Qwen2-72B": (72.7, 80, 8192, 29568, 64, 8, 128, 152064, "", ""),
}
"""Model → parameters in billions, layers, widths, heads, vocabulary, experts: their configs."""
DEVICES = {
    "Nvidia GH200 GPU": "GH200",
    "Nvidia A100 GPU": "A100-SXM-40GB",
    "Nvidia H100 GPU": "H100-SXM-80GB",
    "AMD MI250 GPU": "MI250X-1GCD",
    "AMD MI300X GPU": "MI300X",
    "Habana Gaudi2": "Gaudi2",
}
HEAD = """\
# Serving predictions on a source found later

[LLM-Inference-Bench](https://github.com/argonne-lcf/LLM-Inference-Bench) (arXiv 2411.00136) was
found after the coefficients of serving had been fitted, and none of its rows has moved one. It
measures offline batches with engines of the first half of 2024; our tables hold later ones. Written
by `python -m bench.serving_found_later ALL_RESULTS.csv`; errors are |predicted / published - 1| of
output tokens per second. At the first look vLLM was 17.1 % off on A100 and 27.8 % on H100,
TensorRT-LLM 19.2 and 15.6 %: one device was within a tenth, groups too fast by a fifth to two
fifths for models of 7 B and hardly for 70 B. Two mechanisms follow from that (a step's way to the
ranks of a group, and vLLM's host before its version 0.6). What is believed of both was written
with these rows in view, so vLLM's figures are no longer those of a stranger.

| engine and device | rows | median | p90 | bias in speed | inside 80 % |
|---|---|---|---|---|---|
"""
TAIL = """
llama.cpp is held against one that batches and splits each layer; here it ran sequences one after
another, its layers dealt out to devices, which no column says. vLLM on MI300X was of the first
months of its port: a step of one sequence takes twice, one of 64 four times what the device allows.
Mixtral under TensorRT-LLM and MII is predicted half as fast from 16 sequences on: theirs take
hardly longer than one, as sequences do that are all alike and meet the same two experts.
"""


def rows_of(path: Path) -> list[dict[str, object]]:
    """The table in the columns that `ridgeline validate serving` reads."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            if row["Model"] in SIZES and row["Hardware"] in DEVICES:
                key = (row["Hardware"], row["Num of Hardware"], row["Framework"], row["Model"])
                key = (*key, row["Input Output Length"], row["Batch Size"])
                found[key].append(float(row["Throughput"]))
    return [_row(key, statistics.median(rates)) for key, rates in found.items()]


def _row(key: tuple[str, ...], tokens_per_second: float) -> dict[str, object]:
    hardware, count, framework, model, length, batch = key
    device = DEVICES[hardware]
    values = (
        f"LLM-Inference-Bench, {framework}, {device}", "Plots/All_results.csv",
        model.rpartition("/")[2], *SIZES[model], device, count, count, 1, "fp16", "fp16", length,
        length, batch, "output_tokens_per_s_total", tokens_per_second / 2.0, "arch",
        f"{framework}, static batch, 2024",
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def validated(rows: list[dict[str, object]]) -> ServingValidation:
    """What `ridgeline validate serving` says of them."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "found_later.csv"
        with table.open("w", newline="", encoding="utf-8") as file:
            written = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            written.writeheader()
            written.writerows(rows)
        return validate_serving(table)


def page(found: ServingValidation) -> str:
    """The page as Markdown."""
    lines = []
    for source, errors in sorted(found.by_source.items()):
        shares = (errors.median, errors.p90, errors.bias, errors.coverage)
        median, p90, bias, inside = (share or 0.0 for share in shares)
        label = source.removeprefix("LLM-Inference-Bench, ")
        lines.append(
            f"| {label} | {errors.rows} | {median:.1%} | {p90:.1%} | {bias:+.1%} | {inside:.0%} |"
        )
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("table", type=Path)
    PAGE.write_text(page(validated(rows_of(arguments.parse_args().table))), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
