"""One whole file of every format that a command reads, to be given beside a bad one."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from tests.cli.test_serving_plans import TABLE as SERVED
from tests.plan.simulate.test_fit import log
from tests.report.records import a_profile
from tests.trace.written import host, kernel, write

from ridgeline.cli.main import run
from ridgeline.records.step_log import COLUMNS, line
from ridgeline.records.store import write_record

TABLE = (
    "source,model,layers,hidden,heads,vocab,seq,gpu,n_gpus,global_batch,metric_name,metric_value",
    "measured,llama-2-7b,32,4096,32,32000,4096,H100,8,64,step_time_s,9",
)
ESTIMATE = "predict training --model gpt2 --cluster 8xH100 --seq 128 --global-batch 8"
RECIPE = """
[model]
config = "gpt2"
[data]
path = "text.txt"
seq = 128
[optimizer]
learning_rate = 1e-3
final_learning_rate = 1e-4
"""


def write_whole_files(folder: Path) -> None:
    """script.py, text.txt, table.csv, served.csv, recipe.toml, steps.csv and so on."""
    (folder / "script.py").write_text("")
    (folder / "text.txt").write_text("some words " * 400)
    (folder / "table.csv").write_text("\n".join(TABLE))
    (folder / "served.csv").write_text(SERVED)
    (folder / "jobs.csv").write_text("submit_seconds,duration_seconds,num_gpus\n0,60,8\n")
    (folder / "tasks.csv").write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1,500\n")
    (folder / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu\nn0,9000,9000,8\n")
    (folder / "pods.csv").write_text("pod,gpus,node\na,8,n0\n")
    (folder / "samples.csv").write_text("namespace,pod,utilisation\n")
    (folder / "state.json").write_text(
        '{"items": [{"kind": "Node", "metadata": {"name": "n0"},'
        ' "status": {"allocatable": {"cpu": "9", "memory": "9Gi", "nvidia.com/gpu": "8"}}}]}'
    )
    (folder / "workloads.toml").write_text(
        '[[workload]]\nname = "a"\ngpu_share = 0.1\nmemory_bytes = 4e9\n'
    )
    (folder / "pool.toml").write_text("gpus = 8\n")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "stack.toml").write_text("")
    (folder / "typed.toml").write_text(
        'name = "typed"\nsensors = [{name = "camera", rate = "30Hz"}]\n'
        'stages = [{name = "only", inputs = ["camera"], time = "9ms"}]\n'
    )
    (folder / "steps.csv").write_text(",".join(COLUMNS) + "\n" + "".join(map(line, log(0.0))))
    (folder / "requests.jsonl").write_text('{"timestamp":0,"input_length":9,"output_length":9}\n')
    write_record(folder / "profile.json", a_profile())
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run([*ESTIMATE.split(), "--json"]) == 0
    (folder / "estimate.json").write_text(said.getvalue())
    write(folder / "whole.json", [host(0, 10, "aten::add"), kernel(5, 10)])
