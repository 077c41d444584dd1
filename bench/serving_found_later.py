"""Hold the serving predictions against published runs that no fit has seen.

    python -m bench.serving_found_later ALL_RESULTS.csv

ALL_RESULTS.csv is `Plots/All_results.csv` of github.com/argonne-lcf/LLM-Inference-Bench (Chitty-
Venkata et al., arXiv 2411.00136): offline batches of 1 to 256 sequences, as many tokens out as in,
16 bits, engines of the first half of 2024. Writes `docs/results/serving_found_later.md`. Rows of
one configuration are joined by their median; its throughput counts tokens in and out together.

`serving_found_later.csv` holds the tables of other publishers, found in eight goes, in the columns
that `ridgeline validate serving` reads; the page says where they stand and what was said of them at
first sight.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from ridgeline.plan.serving.validate import validate_serving
from ridgeline.records.validation import ServingErrors, ServingValidation

PAGE = Path(__file__).parents[1] / "docs/results/serving_found_later.md"
TABLE = Path(__file__).with_name("serving_found_later.csv")
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
MORE = """
## Six tables found after that

[`serving_found_later.csv`](../../bench/serving_found_later.csv): 600 runs, entered and predicted
before anything was changed (*first*), and by what came of it (*now*). None is in a fit. Which
mechanisms were missing was seen on these rows, so only the first look is that of a stranger.

- AMD: Llama 3.1 70B and 405B in fp8 on eight MI300X, vLLM 0.10.0 (`docs/dev-docker/README.md` of
  ROCm/vllm, Apache-2.0).
- Intel: Llama 2 and 3.1 and Mistral in fp8 on Gaudi 3, software 1.18 (model performance page;
  figures alone).
- NVIDIA: Llama 3.1 8B on one H100 and 3.3 70B on two, fp8, NIM 1.8.0 (NIM LLM benchmarking guide
  1.0.0; figures alone).
- Qwen: one request at a time, from 1 to 129,042 tokens of context, Qwen3 on H20 and Qwen2 on A100
  (speed benchmarks of the documentation, Apache-2.0).

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
SIX = {
    "AMD vLLM 0.10.0 docs, MI300X": "0 | 15.7% | 40.6% | +18.6% | 50%",
    "Intel Gaudi 3 model performance (1.18)": "0 | 14.8% | 34.5% | +3.5% | 54%",
    "NVIDIA NIM LLM 1.8.0 docs": "0 | 9.8% | 56.1% | +5.8% | 78%",
    "Qwen2 speed benchmark, vLLM 0.4.2": "42 | 31.2% | 118.2% | +31.2% | 29%",
    "Qwen3 speed benchmark, SGLang 0.4.6": "44 | 23.2% | 66.2% | +21.8% | 41%",
    "Qwen3 speed benchmark, transformers 4.51": "24 | 203.3% | 1820.0% | +203.3% | 14%",
}
"""Source → rows refused, and errors of the others, before anything was changed."""
TEN = {
    "Azure AI benchmarking guide, H100": "0 | 19.5% | 39.7% | +19.5% | 42%",
    "Azure AI benchmarking guide, H200": "0 | 7.8% | 16.7% | -0.3% | 67%",
    "Azure AI benchmarking guide, MI300X": "0 | 26.8% | 35.0% | +26.8% | 94%",
    "DGX Spark, gpt-oss-20b": "11 | | | |",
    "GPU-Benchmarks-on-LLM-Inference, llama.cpp": "101 | 23.4% | 42.8% | -2.1% | 50%",
    "M. Rahman, Mistral 7B on an RTX 4090": "0 | 14.0% | 72.9% | -4.4% | 60%",
    "Oracle Cloud, Llama 3.1 405B on MI300X": "0 | 22.6% | 33.0% | +29.2% | 64%",
    "P. Khmel, 13 GPUs and 10 models, llama.cpp": "13 | 14.5% | 49.6% | -10.0% | 75%",
    "TensorRT-LLM docs perf-overview (v1.2)": "20 | 10.5% | 41.8% | +4.2% | 64%",
    "alpharomercoma MI300X-vs-H200": "0 | 16.4% | 25.7% | -12.5% | 50%",
}
"""The same of the tables that were found last."""
SEVEN = {
    "ATOM recipes, MI355X and MI300X": "0 | 41.2% | 83.3% | -22.4% | 62%",
    "DataCrunch, Llama 3.3 70B on four H200": "0 | 9.9% | 24.5% | -0.8% | 100%",
    "GPUStack performance lab, SGLang": "46 | 71.3% | 452.5% | +92.0% | 14%",
    "GPUStack performance lab, TensorRT-LLM": "0 | 53.4% | 342.0% | +71.0% | 20%",
    "GPUStack performance lab, vLLM": "34 | 35.3% | 115.8% | -4.7% | 34%",
    "Qwen3.5-27B on four A100 PCIe": "45 | | | |",
    "sariekr/gpu_conc, gpt-oss-20b": "0 | 27.0% | 43.0% | +14.0% | 50%",
}
"""The same of the tables that were found in the third go."""
TWO = {
    "MLPerf Inference v5.1, offline": "0 | 17.5% | 25.4% | -17.5% | 11%",
    "SGLang cookbook": "0 | 38.5% | 165.2% | +11.3% | 53%",
}
"""The same of the tables that were found in the fourth go."""
MENDED = """
Biases are of speed, intervals of 80 %. 19 of NIM's times to the first token queue, and are judged
neither first nor now. What came of the first look:

- `gptq-int8`, `gptq-int4` and `awq-int4` were no formats: 110 rows were refused. They are read now.
  Those of SGLang and H20 are its worst, so that its figures are larger than those of the 88 rows
  that were judged first, whose predictions are the same.
- Decodes of small models take twice as long from 14,336 tokens of context on. vLLM's first engine
  replays captured graphs up to 8,192 tokens (`max_context_len_to_capture`) and launches longer ones
  kernel by kernel, as it does prompts, for which it has what was believed of these. Qwen2's rows
  that were judged both times went from 31.2 / 118.2 to {qwen2} %.
- `enforce_eager=True` in a note is an engine that captures nothing.
- NIM ends at some 13,000 tokens a second with 8 B: one Python process sends them (it starts
  `vllm_nvext.entrypoints.openai.api_server`). It has what is believed of SGLang's front end.
- Hardware of which no run is in the fit had intervals that other hardware had taught. They are no
  narrower now than what was believed before any run.

What is left, and why nothing was changed for it:

- On MI300X a step of 128 sequences takes 23 ms with 70 B and 57 ms with 405 B, of which 13 and 34
  are predicted; a step of one is within a seventh. The rest grows as all-reduces do (layers times
  width), as if they ran at a fifth of the rate. No run of such a part is in the fit.
- Dense models of 4 to 32 B in bf16 on H20 read weights at 1.1 to 1.4 TB/s, of 4, for one request
  (explained since, below); 32 B is slower than under transformers (20.7 and 26.2 tokens/s).
  Mixtures in 4 bits take five times as long as in fp8: their kernels, the page says, need more
  work.
- AWQ before vLLM had Marlin for it is slower than GPTQ by a third (72 B on two A100); both are one
  format here. The mixture of 57 B takes twice as long as predicted.
- transformers in bf16 with next to no context is within a tenth for dense models. It copies long
  caches at every step, runs fp8 slower than bf16, and loops over experts in Python.
- First tokens of NIM's 8 B are of clients in lockstep (25 of 1,000 tokens: 268 ms, one alone: 19);
  those of its 70 B are not.
- Two Gaudi 3 are predicted a quarter to a half too fast with 70 B, eight are not.
"""
LAST = """
## Ten tables found last

356 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- Workstation and consumer cards: Llama 3 8B and Llama 7 to 65 B in llama.cpp on twelve cards from
  the RTX 3070 to the H100 PCIe (XiongjieDai/GPU-Benchmarks-on-LLM-Inference; figures alone);
  gpt-oss 20B and Ministral 3 3B on thirteen cards from the GTX 1080 to the B300 (blog of P. Khmel;
  figures alone); gpt-oss 20B on two DGX Spark (TrevorS/strieber-gpt-3 and jetsonhacks.com; figures
  alone); Mistral 7B in vLLM on an RTX 4090 (a blog of M. Rahman; figures alone).
- AMD: Llama 3.1 8B, 70B and 405B in fp8 on MI300X, beside H100 and H200 under TensorRT-LLM (Azure's
  AI benchmarking guide, in the fork of samuel-bohman; figures alone); 405B on eight MI300X (a blog
  of Oracle; figures alone); 8B in bf16 on one MI300X and one H200 under vLLM 0.26
  (alpharomercoma/MI300X-vs-H200; figures alone).
- NVIDIA: TensorRT-LLM's later performance overview (Apache-2.0): gpt-oss, Qwen3, DeepSeek-R1 and
  Llama 3.3 on B200, GB200, H200, H100 and RTX PRO 6000.

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
LEFT = """\

What came of it, each with a source that is none of these tables:

- **101 rows in llama.cpp and all of the DGX Spark were refused**: GGUF's formats (`Q4_K_M`,
  `MXFP4_MOE`) and eleven cards were not on record, and hardware that no fit has seen was no
  question at all. Now it is answered, in doubt and with intervals as wide as before any run.
- **llama.cpp** has a class of its own: 30 kernels a layer, as its graphs have (1,030 nodes for 32
  layers), and rounded weights that are multiplied as they are. Before, as gpt-fast, the three
  tables were at 22.0 / 43.7, 39.1 / 102.5 and 43.2 / 48.5 %. gpt-oss first stood as `mxfp4`; all
  but its experts are in 8 bits, which llama.cpp calls `MXFP4_MOE`.
- **MI300X with many sequences were 1.3 to 1.7 times too fast.** An all-reduce now depends on the
  size of its message: one kernel fetches few bytes at what few compute units move, a library's
  pipeline takes 40 (NCCL) or 80 microseconds (RCCL) to fill and then 0.7 to 1 of the links
  (Azure's tables of collectives). Links of a mesh lead to one peer each, so that two of eight have
  one of seven: Gaudi 3 went from 14.8 to 8.4 % by that alone. Matmuls in fp8 and memory have shares
  of their own on AMD.
- **vLLM from 0.14 on** schedules beside the device: vLLM 0.26 went from 13.5 % too slow to 1 %.

What is left:

- AMD's are still a tenth to a fifth too fast, most with 64 sequences and more. No AMD run is in a
  fit.
- llama.cpp's prompts of 512 tokens are a third too slow on GeForce cards and too fast on servers':
  it multiplies rounded weights in int8. Its F16 on an RTX 4080 is faster than our peak, which
  sums in 32 bits. Mixtures on GDDR are up to two fifths too slow.
- TensorRT-LLM 1.2 with attention data parallelism: long prompts were two to three times too slow,
  since all groups waited for the one that had a prompt; its recipes balance them, and 40 to 65 %
  became 1 to 19. Prompts and answers of 1,000 tokens with 3,000 requests are up to two fifths too
  fast.
"""


THIRD = """
## Seven tables of a third go

439 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- GPUStack's performance lab (Apache-2.0): bursts of 100 to 1,000 requests, recorded conversations
  and prompts of 2,000 to 32,000 tokens, eight models from 14 to 671 B on A100, H100 and H200 under
  vLLM 0.11, SGLang 0.5 and TensorRT-LLM 1.0 and 1.2.
- ATOM (ROCm, MIT): Qwen3 235B on four and eight MI355X, DeepSeek-R1 on eight MI300X.
- DataCrunch's h200-benchmarks: Llama 3.3 70B on H200 under SGLang (figures alone).
- sariekr/gpu_conc: gpt-oss 20B on H100 PCIe, H200, B200 and MI300X under vLLM (figures alone).
- A study of tensor parallelism: Qwen3.5 27B on A100 PCIe under vLLM (figures alone).

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
LAST_MENDED = """
What came of it, and of looking at the older tables again, each with a source that is none of them:

- **Bursts** had been a steady engine's waves and half of their prompts once more. Now prompts fill
  the engine, sequences that are alike end together and leave a last generation that does not fill
  it, and conversations end one by one; engines that run prompts first let decodes wait. What a
  note calls ShareGPT or conversations is held for exponentially distributed. Azure's H200 went from
  8.4 to 3.6 %, TensorRT-LLM 1.2 from 14.2 / 49.7 to 12.1 / 36.8 %, Azure's H100 and MI300X, whose
  overcounted prompts had hidden that both are slower than predicted, from 18.3 and 11.4 to 19.3 and
  17.9 %. No burst is in a fit, so that their intervals are no narrower than before any run.
- **Qwen3 on H20** was read at 1.4 of 4.0 TB/s: a pull request of ROCm (rocm-libraries 12329) prints
  what one vector takes there, 1.34 to 1.40 TB/s from 200 MB on. It stands as a belief about that
  part alone: 28.3 / 80.4 to 7.8 / 27.6 %.
- **AMD**: the same table has hipBLASLt beside kernels for one to four vectors, at 0.65 to 0.72 of
  their rate; for more rows weights are read at 0.7. The floor of 40 microseconds that stood here is
  not: steps of eight sequences take less than it would. AMD's own rows 10.9 to 9.3, Oracle's 16.1
  to 13.0, alpharomercoma's 14.2 to 6.7 %.
- **ATOM's clients are in lockstep**: requests of one length under an engine that runs prompts first
  end together and ask together again, wait for each other's prompts in every round (2.5 s to the
  first token, 0.4 predicted) and decode without any beside them. Such rows now are held for that:
  first tokens from 82.8 to 21.5 %, all rows from 41.2 / 83.3 to 25.8 / 40.4 %.
- **Devices wait for the one whose experts multiply the most**: the largest of so many sums.
- 78 rows of GLM had been too little: the column `head_dim` was not read.
- 45 rows of Qwen3.5 27B had been too little: it is a preset now. Times per token are 2.7 % off at
  the median, unseen by any fit.
- Intervals of a class of engines without a fitted run are a quarter wider: vLLM before 0.6 on H100
  is inside 80 % in 85 % of its rows, 73 before; on GH200 it is 92.

What is left:

- GPUStack does not say which H100 it has. One of them multiplies prompts of 14 and 32 B half as
  fast as other H100, as a part of 350 W would, while mixtures on eight are faster than predicted;
  its gpt-oss under SGLang on A100 runs without kernels of its own (266 tokens/s, 7,000 predicted).
- ATOM on AMD is faster than vLLM's classes would be there: DeepSeek-R1 by half, Qwen3 by a quarter.
- vLLM 0.10 makes less of a B200 than of an H200 with gpt-oss; on MI300X it takes twice as long.
- Qwen3.5 27B's first tokens among 8 and 32 clients of one length on vLLM take three to five times
  what is predicted, as long as all their prompts in one step: those clients stay together as well.
  Held for lockstep like ATOM's, they come to 1 to 46 % (those of 8 prompts of 8,192 tokens, which
  no step holds, to 112 to 195 % too long); the source says nothing of lengths, so they are not.
"""


FOURTH = """
## Two tables of a fourth go

211 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- SGLang's cookbook (sgl-project/sgl-cookbook, Apache-2.0): ten models from 14 to 1,026 B on B200,
  H100, A100 and MI300X under SGLang 0.5.6 to 0.5.9, closed loops of 1 to 100 clients whose lengths
  are spread evenly from next to nothing to 1,000 or 8,000 tokens; pages that do not say which of
  several devices they measured, and guesses of drafts, are left out.
- MLPerf Inference v5.1 (mlcommons/inference_results_v5.1, Apache-2.0), offline and closed: Llama
  3.1 8B on one device a replica and 405B on eight H200; 778 and 9,428 prompt tokens, 73 and 684 of
  a completion are taken for the means of its data sets, and were not confirmed. Rows whose layout
  no summary says are left out.

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
FOURTH_MENDED = """
What came of it, and of asking why MI300X had become worse:

- **SGLang as it starts is not SGLang as published recipes start it.** Ten decode steps between two
  looks at the queue and waves of prompts are of recipes (`sglang-recipes`); the cookbook starts it
  plainly, and its lengths differ. First tokens of its mixtures at the first look 71.7 / 352.0 %, of
  its dense models 99.5 / 402.7 %.
- **A run of so many requests ends with places that are empty.** Where the table says how many there
  were, the last of unequal ones leave 16 clients 13.5 places over 80 requests (13.5 to 13.6
  published), and the share that waits for the first wave is clients over requests.
- One client of an engine in Python waits for a server, too: its prompt is launched from Python and
  its request comes over HTTP.
- **The last wave of tiles** (`cost/serving/tile_waves.py`): of a matmul whose columns are dealt out
  to eight devices most compute units get no tile, and the others take a tile's own time. Steps of
  128 sequences on eight MI300X grew by 0.8 microseconds a sequence and layer for 70B and 405B
  alike: by layers, not by width, so that it was no all-reduce. Azure's MI300X, which bursts timed
  rightly had made worse (11.4 to 17.9 %), are at 10.9, Oracle's 13.0 to 6.9, AMD's own 9.3 to 8.8.
- While prompts of a burst wait, every group of attention data parallelism has one: DeepSeek-R1 with
  prompts of 32,000 tokens on H200 (GPUStack) was 4.6 times too slow.

What is left:

- The cookbook's initial waves find most of their prompts in the cache, left there by the run before
  on the same server: 64 prompts of 3,981 tokens answer within 1.9 s on eight A100, which cannot
  multiply them in less than 14. Its rows are held for that; first tokens stay its worst figures.
  SGLang on MI300X decodes DeepSeek-V3 and MiniMax-M2 at a third of what is predicted for one
  client, with kernels that the pages do not name; GPT-OSS on eight B200 takes half of it.
- MLPerf's submitters tune for one data set: a sixth faster than anything in the fit, alike on H200
  and B200, and prompts are most of their work.
- AMD's static batches with 2,048 prompt tokens find them in the cache: those of 405B and 128
  sequences add 8.4 s, where multiplying them takes 10.1 at the printed peak. They are still
  predicted as new, which hides a tenth by which those decodes are too fast.
- ATOM's own kernels on AMD are faster than vLLM's, and are still predicted too slow. Tiles of 256
  columns are believed of MI300X alone.
- TensorRT-LLM of 2024 is predicted 2 points worse than before (A100 16.4 to 18.3 %, H100 13.2 to
  15.7), vLLM of 2024 a little better (9.6 to 8.9, 8.9 to 8.3): the fit makes large matmuls faster
  where it takes last waves apart.
"""


FIVE = {
    "AutoAWQ README, RTX 4090": "0 | 42.7% | 79.8% | -12.2% | 42%",
    "ExLlamaV2 README": "0 | 44.4% | 46.7% | -44.4% | 0%",
    "FasterTransformer GPT guide": "6 | 22.0% | 214.2% | -18.0% | 42%",
    "Intel Gaudi 2 model performance (1.18)": "0 | 17.9% | 33.0% | -13.3% | 75%",
    "dennislee22/vLLM-benchmarking, A100": "3 | 26.3% | 63.5% | +17.3% | 69%",
}
"""The same of the tables that were found in the fifth go."""
FIFTH = """
## Five tables of a fifth go

349 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- FasterTransformer's guide for GPT (NVIDIA, Apache-2.0): static batches of 0.35 to 530 B on one to
  sixteen A100, of 2023.
- AutoAWQ's README (MIT): nine models from 1.1 to 34 B in 4 bits on one RTX 4090, prompts of 64 to
  2,048 tokens.
- ExLlamaV2's README (MIT): six models from 1.1 to 34 B in 4 bits on an RTX 3090 Ti and a 4090.
- Intel's performance page for Gaudi 2, software 1.18 (figures alone).
- dennislee22/vLLM-benchmarking (figures alone): bursts of 1 to 1,000 requests, Qwen2 7B and Qwen2.5
  32B on one and two A100 PCIe under vLLM 0.10; that nothing but PCIe joins two is inferred.

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
FIFTH_MENDED = """
What came of it; mechanisms were sought on these rows, so that *now* is no stranger's figure:

- **FasterTransformer had been an eager engine in Python.** It is a class of its own: as native
  ones, but each of its eleven kernels a layer is started from C++ outside of a graph, and NCCL
  alone joins its ranks (51 microseconds for 1 MB among eight A100).
- **Sixteen ranks on two nodes had talked over the host's bus.** An all-reduce goes through the
  nodes' own fabrics and then over each device's card.
- **Widening rounded weights** is work of compute units, so that it adds little where memory is slow
  beside them (GeForce) and more where it is fast. It had been one share of memory's rate for all.
- **ExLlamaV2** multiplies rounded weights as llama.cpp does, from C++.
- **vLLM admits by a prompt's room**: 75 requests of 1,024 and 1,024 tokens all have their first
  token within two seconds where 45 fit whole, and the latest are sent back to wait. That wait had
  been one for the first token. It holds for bursts in vLLM's classes (SGLang foresees 0.7 of a
  completion): GPUStack's vLLM from 24.0 / 66.3 to 23.7 / 70.3 %, the A100's from 26.3 / 63.6 to
  22.9 / 51.9 %.
- **Stages of a pipeline** are read: as many groups of sequences as stages are on their way, each as
  slow as on one stage's devices. No fit has any, so that their intervals are wide; Llama 3.3 70B on
  two RTX PRO 6000 (TensorRT-LLM 1.2) is a fifth too slow.

What is left:

- Two A100 over PCIe: from ten sequences on, each all-reduce takes 55 microseconds and more beyond
  what is predicted (by 230 a MB), as NCCL does through the host's memory; a single sequence is
  right. Nothing in the columns says whether devices reach each other's memory, and four A100 PCIe
  of another table (Qwen3.5 27B) do.
- AutoAWQ's prompts of 64 tokens take two to five times as long as predicted: launches from Python,
  and weights that are widened for a matmul in 16 bits. ExLlamaV2 is still a quarter to a third
  faster than predicted.
- FasterTransformer with eight ranks is a sixth too fast, models below 2 B too: 25 microseconds of
  each all-reduce are not explained; in three stages it is up to two fifths too fast, since their
  first and last groups leave stages empty.
- The floor of 42.8 ms refuses two first tokens of 36 ms: prompts that the cache held.
"""


EIGHTH_ROWS = {
    "AMD performance results, MI300X": "0 | 18.4% | 38.3% | +18.4% | 79%",
    "Colossal-AI pipeline inference": "0 | 142.7% | 337.7% | +142.7% | 0%",
    "ExLlama README, RTX 4090": "3 | 12.9% | 21.7% | -11.2% | 100%",
    "TensorRT-LLM docs performance.md (v0.5.0)": "0 | 6.9% | 66.9% | +6.9% | 62%",
    "TensorRT-LLM docs perf-overview (v0.17)": "0 | 7.6% | 16.8% | -6.9% | 82%",
    "TensorRT-LLM docs perf-overview (v0.19)": "0 | 7.2% | 21.9% | -0.0% | 79%",
}
"""The same of the tables that were found in the eighth go."""
SEVENTH_ROWS = {
    "mlc-ai/llm-perf-bench": "0 | 13.2% | 39.4% | -2.8% | 81%",
    "LMDeploy docs, 4 bits": "0 | 25.9% | 26.2% | -25.9% | 0%",
    "LMDeploy docs, rounded caches": "3 | 3.0% | 12.6% | -1.6% | 100%",
    "LMDeploy docs, Qwen3-30B": "0 | 25.1% | 80.0% | +25.1% | 33%",
    "GitHub threads, mixtures": "0 | 22.7% | 59.9% | -0.5% | 68%",
    "MLPerf Inference v4.1, offline": "0 | 15.1% | 22.8% | +15.1% | 58%",
    "optimum-neuron vLLM benchmark": "0 | 65.8% | 95.8% | +193.1% | 10%",
}
"""The same of the tables that were found in the seventh go."""
THREE = {
    "QServe README, TensorRT-LLM": "1 | 18.1% | 52.3% | +18.0% | 38%",
    "TensorRT-LLM docs perf-overview (v1.0), experts and pipelines": "0 | 16.0% | 56.7% | -0.4%"
    " | 81%",
    "vLLM recipes": "0 | 58.8% | 96.1% | +91.6% | 28%",
}
"""The same of the tables that were found in the sixth go."""
SIXTH = """
## Three tables of a sixth go

317 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- TensorRT-LLM 1.0's performance overview (Apache-2.0), the part that no fit holds: Llama 4 Scout
  and Maverick, Qwen3 30B and 235B, Llama 3.1 405B on B200, GB200, H200, H100, and RTX PRO 6000 with
  one to eight stages. Attention data parallelism is as its commands have it for mixtures.
- QServe's README (Apache-2.0): the largest batch that TensorRT-LLM of 2024 fits on an L40S and an
  A100, eight models in 16, 8 and 4 bits.
- vLLM's recipes (Apache-2.0): sample outputs for Ministral 3 on MI300X, ERNIE 4.5, Kimi K2 and
  DeepSeek-R1 in fp4.

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
SIXTH_MENDED = """
What came of it:

- **405B was right at first sight**: 5.5 % at the median over 40 rows on B200, GB200, H200 and H100.
- **Workstation cards of Blackwell** had the shares of a B200's peak, and prompts were a third too
  slow. A card feeds a fifth of a B200's units from six tenths of its power: three RTX PRO 6000
  multiply in 16 bits at 0.7 to 0.87 of their peak (zzc0721/torch-performance-test-data), in MXFP8
  at 0.55 to 0.64 (Dao-AILab/quack, pull request 153). By beliefs from those measurements rows of
  such cards go from 15.8 to 11.7 %, those of TensorRT-LLM 1.2 from 17.6 to 11.3.

What is left:

- Prompts of mixtures on B200 and H200 are 1.4 to 1.7 times too fast under TensorRT-LLM, alike for
  three models, and not on workstation cards; decodes are not. GB200 with Qwen3 30B takes twice a
  B200's time, which release 1.2 does not.
- Eight stages on workstation cards are 1.5 to 1.9 times too fast with short prompts, one to four
  within 15 %: what a step costs its host is not known for so many groups on their way.
- Sample outputs are of servers that were not warmed up: first tokens of seconds beside few clients.
"""

SEVENTH = """
## Seven tables of a seventh go

144 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- MLC's comparison of 2023 (mlc-ai/llm-perf-bench, Apache-2.0): Llama 2 and CodeLlama in 4 and 16
  bits under MLC, ExLlamaV2, llama.cpp and vLLM 0.2 on an RTX 3090 Ti and a 4090, two RX 7900 XTX,
  two to eight A10G and A100 over PCIe.
- LMDeploy's documentation (InternLM/lmdeploy, Apache-2.0): 4 bits on an RTX 4090, caches of 16, 8
  and 4 bits on an A100, Qwen3 30B on an H200.
- MLPerf Inference v4.1 (mlcommons, Apache-2.0), offline: Llama 2 70B and Mixtral on ten systems.
  The 294 tokens of a completion stand in its rules, those of a prompt are inferred.
- Threads of issues on GitHub (figures alone): Qwen3 30B and 235B, DeepSeek-R1 and Mixtral 8x22B on
  A100, H100, H200 and H20 under vLLM 0.4 to 0.10 and SGLang 0.4 to 0.5. First tokens that take as
  long for 4,096 tokens as for 1,024 come from a cache, and are left out.
- optimum-neuron's benchmarks of vLLM (Hugging Face, Apache-2.0) on Trainium2 and Inferentia2.

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
SEVENTH_MENDED = """
What came of it:

- **Cards read memory faster than servers' parts do, beside their peak**: GDDR brings a fifth to a
  half as much to each compute unit in a cycle, which is kept busier. Six tables were a tenth to a
  quarter too slow, alike in 4 and in 16 bits.
- **A client's own prompt** had been counted between its own tokens.
- Caches called `int4` were no format.
- llama.cpp's runs on several cards are left out: in 2023 it cut rows of each matrix and joined them
  on one card, which no column says (145 ms for a token of 70B in 16 bits on eight A10G are less
  than reading one layer after another takes).

What is left:

- vLLM 0.2 waits longer for more ranks: 57 to 70 ms a step of 80 layers on four and eight A100, 42
  predicted.
- Engines that compile 4 bits for one card are still a sixth faster than predicted.
- Mixtures on H20 are twice as fast as predicted with two tokens for each expert: kernels with tiles
  of 16 rows are as fast there as larger ones, which the one coefficient of few tokens, fitted on
  parts with seven times its peak, does not know.
- DeepSeek-R1 in 4 bits decodes at half the rate that is predicted, whose mixtures in 4 bits have
  kernels of their own; on two nodes a third is missing.
- Neuron's programs are compiled for 4,096 tokens and a fixed batch, whatever a request has: no
  class of engines stands for that, and nothing that is said of Trainium is to be trusted.
- LMDeploy's engine in Python lets prompts wait for a second; no note says why.
"""


EIGHTH = """
## Six tables of an eighth go

635 runs more, in the same file, entered and predicted before anything was changed; none is in a
fit.

- TensorRT-LLM's performance pages of releases 0.5, 0.17 and 0.19 (Apache-2.0): Llama 3.1 8 to 405B,
  Mistral 7B and both Mixtrals on H100, H200, GH200, L40S and A100, fp4 on B200.
- AMD's page of performance results (figures alone), three releases of vLLM from 0.9 to 0.11: bursts
  of 500 to 3,200 requests, Llama 3.1 70B and 405B in fp8 on eight MI300X.
- ExLlama's README (MIT): four models in 4 bits on an RTX 4090.
- Colossal-AI's pipeline of two stages beside transformers (Apache-2.0), of 2023.

| source | rows | refused | first: median | p90 | bias | inside | now | p90 | bias | inside |
|---|---|---|---|---|---|---|---|---|---|---|
"""
EIGHTH_MENDED = """
What came of it:

- **Bursts of one length** need the whole room of all requests at the same time, where steady
  engines need that of half-grown ones. vLLM begins more and sends the latest back, whose caches it
  computes again: AMD's 405B with prompts of 128 and answers of 4,096 tokens were 45 % too fast and
  are 5. The same of older tables: AMD's bursts under vLLM 0.10.0 from 24.0 / 47.8 to 20.5 / 25.2 %,
  Azure's 90th percentile on MI300X from 31 to 23, throughputs of two A100 (dennislee22) from 17.5 %
  too fast to 2.8.
- **GeForce parts sum in 16 bits** at twice the rate that is printed for sums in 32: three of
  ExLlama's prompts had been below the floor.
- Mistral 7B of 32,768 words is v0.3, which has no window.

What is left:

- ExLlama's prompts are two to three times too slow: its sums in 16 bits are not believed of a class
  whose other engine, llama.cpp, makes no use of them.
- fp4 on B200 under release 0.19, the first with PyTorch, is a sixth to a third too fast; 1.0 is
  not.
- 70B on four H100 under release 0.5 is up to twice too fast, 7B on one is within a tenth.
- transformers of 2023 takes 47 ms for a step of 7B on two A800, 19 predicted.
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
        label = source.removeprefix("LLM-Inference-Bench, ")
        lines.append(f"| {label} | {errors.rows} | {_figures(errors)} |")
    return HEAD + "\n".join(lines) + "\n" + TAIL + more()


def more() -> str:
    """The sections on the other publishers' tables."""
    found = validate_serving(TABLE)
    with TABLE.open(newline="", encoding="utf-8") as file:
        formats = [row["weight_dtype"] for row in csv.DictReader(file)]
    again = [
        abs(row.error)
        for row in found.rows
        if row.error is not None
        and row.source.startswith("Qwen2")
        and "gptq" not in formats[row.row - 1]
    ]
    median, p90 = statistics.median(again), statistics.quantiles(again, n=10, method="inclusive")[8]
    both = f"{100 * median:.1f} / {100 * p90:.1f}"
    first = MORE + _lines(found, SIX) + MENDED.format(qwen2=both)
    second = LAST + _lines(found, TEN) + LEFT
    third = THIRD + _lines(found, SEVEN) + LAST_MENDED
    fourth = FOURTH + _lines(found, TWO) + FOURTH_MENDED
    fifth = FIFTH + _lines(found, FIVE) + FIFTH_MENDED
    sixth = SIXTH + _lines(found, THREE) + SIXTH_MENDED
    seventh = SEVENTH + _lines(found, SEVENTH_ROWS) + SEVENTH_MENDED
    eighth = EIGHTH + _lines(found, EIGHTH_ROWS) + EIGHTH_MENDED
    return first + second + third + fourth + fifth + sixth + seventh + eighth


def _lines(found: ServingValidation, first: dict[str, str]) -> str:
    """A line for each of these sources: rows, errors at the first look, errors now."""
    told = [(source, found.by_source[source]) for source in sorted(first)]
    return "".join(
        f"| {source} | {errors.rows} | {first[source]} | {_figures(errors)} |\n"
        for source, errors in told
    )


def _figures(errors: ServingErrors) -> str:
    if not errors.rows:
        return "| | |"
    shares = (errors.median, errors.p90, errors.bias, errors.coverage)
    median, p90, bias, inside = (share or 0.0 for share in shares)
    return f"{median:.1%} | {p90:.1%} | {bias:+.1%} | {inside:.0%}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("table", type=Path)
    PAGE.write_text(page(validated(rows_of(arguments.parse_args().table))), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
