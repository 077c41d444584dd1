"""Slurm: the sbatch file of a run, and the queue's answers about it.

The batch shell is told by `--signal=B:USR1@SECONDS` that the time limit is near: it sends the steps
SIGTERM (ranks save), and puts the job back into the queue, where it goes on from the checkpoint.
`--requeue` does the same after a lost node or a preemption. https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError, RidgelineError
from ridgeline.launch.cluster_file import needed
from ridgeline.launch.job import RECIPE, Job
from ridgeline.launch.torchrun import torchrun_command

FILE = "job.sbatch"
_MARK = "END_OF_RECIPE"
_SAVE_MARGIN_SECONDS = 60
"""Between the end of the grace and the time limit: srun and requeue take a moment."""

_TEMPLATE = """\
#!/bin/bash
{options}
# Written by `ridgeline launch`.
set -u
{setup}mkdir -p {folder}/logs
cat > {folder}/.{recipe}.$$ <<'{mark}'
{recipe_text}
{mark}
mv -f {folder}/.{recipe}.$$ {folder}/{recipe}
{exports}
export RIDGELINE_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

again=no
end_steps() {{ scancel --signal=TERM "$SLURM_JOB_ID"; }}
# Near the time limit: let the ranks save, then queue again. Preemption (TERM) queues by itself.
trap 'again=yes; end_steps' USR1
trap 'end_steps' TERM

srun {srun} bash -c {line} &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2>/dev/null; do  # a trap ends `wait` early
    wait "$step"
    code=$?
done
if [ "$again" = yes ] && [ "$code" != 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def sbatch_file(job: Job, path: Path | None = None) -> str:
    """The whole file.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    needed(job.cluster, "run.folder", path, "a folder that every node sees, for checkpoints")
    if _MARK in job.recipe_text.splitlines():
        raise InputError(f"the recipe has a line {_MARK!r}, which ends it in the sbatch file")
    host = None if job.num_nodes == 1 else "RIDGELINE_HOST"
    words = torchrun_command(
        job,
        host=host,
        is_host="" if host is None else "IS_HOST",
        log_folder=f"{job.folder}/logs",
    )
    line = "exec " + shlex.join(words)
    line = line.replace("RIDGELINE_HOST:", '"$RIDGELINE_HOST":').replace(
        "is_host=IS_HOST", 'is_host=$([ "$SLURM_PROCID" = 0 ] && echo true || echo false)'
    )
    setup = "".join(f"{one}\n" for one in job.cluster.slurm.setup)
    exports = "\n".join(
        f"export {key}={shlex.quote(value)}" for key, value in sorted(job.environment.items())
    )
    return _TEMPLATE.format(
        options="\n".join(f"#SBATCH --{option}" for option in _options(job)),
        setup=setup,
        folder=shlex.quote(job.folder),
        recipe=RECIPE,
        mark=_MARK,
        recipe_text=job.recipe_text.rstrip("\n"),
        exports=exports,
        srun=" ".join(_srun_options(job)),
        line=shlex.quote(line),
    )


def _options(job: Job) -> list[str]:
    slurm, nodes = job.cluster.slurm, job.cluster.nodes
    count = str(job.num_nodes)
    if job.min_nodes < job.num_nodes:
        count = f"{job.min_nodes}-{job.num_nodes}"
    found = [f"job-name={job.name}", f"nodes={count}", "ntasks-per-node=1"]
    if nodes.devices:
        kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
        found.append(f"gpus-per-node={kind}{min(nodes.devices, job.ranks_per_node)}")
    if nodes.cpus:
        found.append(f"cpus-per-task={nodes.cpus}")
    if nodes.memory_bytes:
        found.append(f"mem={-(-nodes.memory_bytes // 2**20)}M")
    for key in ("partition", "account", "qos", "time", "constraint", "reservation"):
        if getattr(slurm, key):
            found.append(f"{key}={getattr(slurm, key)}")
    if slurm.exclusive:
        found.append("exclusive")
    if job.min_nodes < job.num_nodes:
        found.append("no-kill")
    warning = job.cluster.run.grace_seconds + _SAVE_MARGIN_SECONDS
    found += ["requeue", "open-mode=append", f"signal=B:USR1@{warning}"]
    return [*found, f"output={job.folder}/logs/slurm-%j.log"]


def _srun_options(job: Job) -> list[str]:
    found = ["--label"]  # NODE: before each line of the one log
    found.append("--kill-on-bad-exit=" + ("1" if job.min_nodes == job.num_nodes else "0"))
    if job.cluster.nodes.cpus:
        found.append(f"--cpus-per-task={job.cluster.nodes.cpus}")  # srun does not inherit it
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAnswer:
    """What Slurm says of a job."""

    state: str
    """`PENDING`, `RUNNING`, `COMPLETED` ...; empty: it does not know the job."""
    reason: str = ""


def submit(job: Job, script: str) -> str:
    """Hand the file to sbatch; the job's number."""
    folder = Path(job.folder)
    try:
        # The log is opened by Slurm before the script runs.
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(script)
    except OSError as error:
        raise InputError(f"run.folder {folder}: {error.strerror or error}") from None
    answer = _call("sbatch", "--parsable", str(folder / FILE))
    number = answer.strip().partition(";")[0]
    if not re.fullmatch(r"\d+", number):
        raise RidgelineError(f"sbatch answered {answer.strip()!r}, not a job's number")
    return number


def find_submitted(name: str) -> str:
    """The newest job of this name and user; empty: none. For a launcher that died in sbatch."""
    lines = _call("squeue", "--me", "--noheader", f"--name={name}", "--format=%i").split()
    return lines[-1] if lines else ""


def ask(job_id: str) -> QueueAnswer:
    """How a job stands: from the queue, or from the books when it has left it."""
    try:
        text = _call("squeue", "--noheader", f"--jobs={job_id}", "--format=%T|%r").strip()
    except RidgelineError as error:
        if "Invalid job id" not in str(error):
            raise
        text = ""
    if text:
        state, _, reason = text.splitlines()[0].partition("|")
        return QueueAnswer(state=state, reason=reason)
    text = _call(
        "sacct", "--noheader", "--parsable2", "-X", f"--jobs={job_id}", "--format=State,ExitCode"
    ).strip()
    if not text:
        return QueueAnswer(state="")
    state, _, code = text.splitlines()[-1].partition("|")
    return QueueAnswer(state=state.split()[0], reason=f"exit code {code}")


def cancel(job_id: str) -> None:
    """Take the job off the queue, or end it."""
    _call("scancel", job_id)


def _call(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        raise InputError(
            f"{words[0]} is not on this machine: launch from a login node, or look at the"
            " file with --dry-run"
        ) from None
    except subprocess.TimeoutExpired:
        raise RidgelineError(f"{words[0]} did not answer for 60 s") from None
    if done.returncode:
        told = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise RidgelineError(f"{words[0]}: {told}")
    return done.stdout
