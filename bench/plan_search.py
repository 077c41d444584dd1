"""How fast the layout search is: layouts per second and peak memory, beside Calculon.

    python bench/plan_search.py
    CALCULON=/path/to/calculon CALCULON_PYTHON=/path/to/venv/bin/python python bench/plan_search.py

Every search runs in a process of its own, on one core (CPU time is counted), over the whole
space: enumeration, memory, time, families, Pareto front. Where `CALCULON` names a checkout of
calculon-ai/calculon (its Python needs pandas and psutil), the same layouts are given to both:
those of GPT-3 175B on A100s that Calculon can express (no context parallelism, ZeRO-0 or 1 over
all ranks, 1F1B or interleaved, nothing offloaded), Ridgeline all of them, Calculon a sample.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path

RUNS = [
    ("GPT-3-175B", "A100", 1024, 2048, 2048),
    ("GPT-3-175B", "A100", 4096, 4096, 2048),
    ("GPT-3-175B", "A100", 16384, 4096, 2048),
    ("Llama-3.1-405B", "H100", 1024, 1024, 8192),
    ("Llama-3.1-405B", "H100", 4096, 2048, 8192),
    ("Llama-3.1-405B", "H100", 16384, 2048, 8192),
    ("DeepSeek-V3", "H100", 1024, 4096, 4096),
    ("DeepSeek-V3", "H100", 4096, 8192, 4096),
    ("DeepSeek-V3", "H100", 16384, 16384, 4096),
]
SAMPLE = 300
SEED = 7
CALCULON_CODE = """
import json, logging, sys, time
sys.path.insert(0, sys.argv[1])
import calculon.io
from calculon.llm import Llm
from calculon.system import System
application = Llm.Application(calculon.io.read_json_file(sys.argv[1] + "/models/gpt3-175B.json"))
system = System(calculon.io.read_json_file(sys.argv[1] + "/systems/a100_80g.json"))
runs = json.load(open(sys.argv[2]))
good = 0
start = time.process_time()
for run in runs:
    try:
        model = Llm(application, logging.Logger("quiet"))
        model.compile(system, Llm.Execution.from_json(run))
        model.run(system)
        good += 1
    except Llm.Error:
        pass
print(json.dumps({"seconds": time.process_time() - start, "runs": len(runs), "good": good}))
"""


def one_search(model: str, device: str, count: int, batch: int, seq: int) -> None:
    """In a process of its own: search the whole space, print one JSON line."""
    from ridgeline.plan.training.plan import task_of
    from ridgeline.plan.training.task import find

    task = task_of(model, f"{count}x{device}", global_batch=batch, seq=seq)
    start = time.process_time()
    outcome = find(task)
    seconds = time.process_time() - start
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "searched": outcome.found.searched,
                "feasible": outcome.found.feasible,
                "seconds": seconds,
                "peak_bytes": peak_bytes,
                "step_seconds": outcome.step_seconds,
            }
        )
    )


def in_a_process(words: list[str]) -> dict:
    single = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=single)
    return json.loads(done.stdout.splitlines()[-1])


def table() -> None:
    heads = ("model", "devices", "layouts", "fit", "seconds", "layouts/s", "peak MB")
    print(f"{heads[0]:<16}" + "".join(f"{head:>12}" for head in heads[1:]))
    for model, device, count, batch, seq in RUNS:
        words = [model, device, str(count), str(batch), str(seq)]
        found = in_a_process([sys.executable, __file__, "--one", *words])
        rate = found["searched"] / found["seconds"]
        print(
            f"{model:<16}{count:>12}{found['searched']:>12,}{found['feasible']:>12,}"
            f"{found['seconds']:>12.2f}{rate:>12,.0f}{found['peak_bytes'] / 1e6:>12.0f}"
        )


def beside_calculon(checkout: str, python: str) -> None:
    """The layouts that both can express, on one core each."""
    import numpy as np

    from ridgeline.cost.training.layouts import Layouts
    from ridgeline.plan.training.enumeration import chunks
    from ridgeline.plan.training.plan import task_of
    from ridgeline.plan.training.search import judge_of

    print("\nGPT-3 175B, the same layouts in both, one core")
    print(f"{'devices':>8}{'layouts':>10}{'ours/s':>12}{'Calculon/s':>12}{'ratio':>8}")
    for _, device, count, batch, seq in RUNS[:3]:
        task = task_of("GPT-3-175B", f"{count}x{device}", global_batch=batch, seq=seq)
        judge = judge_of(task.model, task.cluster, task.workload, task.coefficients)
        parts = []
        for one in chunks(task.space(8)):
            same = (one.cp == 1) & (one.fsdp == np.where(one.zero == 0, 1, one.dp))
            parts.append(one.take(same & (one.zero <= 1)))
        names = [field.name for field in fields(Layouts)]
        shared = Layouts(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )
        judge.step_seconds(shared)
        start = time.process_time()
        judge.peak_bytes(shared)
        judge.step_seconds(shared)
        rate = len(shared) / (time.process_time() - start)
        layouts = [shared.at(index) for index in range(len(shared))]
        picked = random.Random(SEED).sample(layouts, SAMPLE)
        theirs = calculon_rate(checkout, python, [calculon_run(layout) for layout in picked])
        print(f"{count:>8}{len(layouts):>10,}{rate:>12,.0f}{theirs:>12,.0f}{rate / theirs:>8,.0f}")


def calculon_run(layout) -> dict:
    return {
        "num_procs": layout.num_devices,
        "tensor_par": layout.tp,
        "pipeline_par": layout.pp,
        "data_par": layout.dp,
        "tensor_par_net": 0 if layout.tp > 1 else 1,
        "pipeline_par_net": 1,
        "data_par_net": 1,
        "batch_size": layout.global_batch,
        "microbatch_size": layout.micro_batch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": {"selective": "attn_only"}.get(layout.recompute, layout.recompute),
        "pipeline_interleaving": layout.vpp,
        "optimizer_sharding": layout.zero == 1,
        "tensor_par_comm_type": "rs_ag" if layout.sp else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": False,
        "data_par_overlap": layout.dp > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def calculon_rate(checkout: str, python: str, runs: list[dict]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.json"
        path.write_text(json.dumps(runs))
        found = in_a_process([python, "-c", CALCULON_CODE, checkout, str(path)])
    print(f"{'':8}Calculon ran {found['runs']}, of which {found['good']} fit", file=sys.stderr)
    return found["runs"] / found["seconds"]


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        model, device, *numbers = sys.argv[2:]
        count, batch, seq = map(int, numbers)
        one_search(model, device, count, batch, seq)
        return
    table()
    checkout = os.environ.get("CALCULON")
    if checkout is None:
        print("\nCalculon: set CALCULON to a checkout to run it beside")
        return
    beside_calculon(checkout, os.environ.get("CALCULON_PYTHON", sys.executable))


if __name__ == "__main__":
    main()
