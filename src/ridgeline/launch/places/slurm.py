"""Runs on a Slurm cluster: the sbatch file of a run, and what the queue says about it.

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
from ridgeline.launch.job import RECIPE, LaunchJob, torchrun_command
from ridgeline.launch.merge import LogLine, LogReader, WholeLog, parse_line
from ridgeline.launch.pending import why_slurm_waits
from ridgeline.launch.remembered import Remembered
from ridgeline.records.launched_run import LaunchedRun, Place, RunStatus, State

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


_STATES: dict[str, State] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "pending",
    "REQUEUED": "restarting",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "": "lost",
}


def render(job: LaunchJob, place: Place, path: Path | None) -> str:  # noqa: ARG001
    """Render the whole sbatch file.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    needed(job.cluster, path, {"run.folder": "a folder that every node sees, for checkpoints"})
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


def _options(job: LaunchJob) -> list[str]:
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


def _srun_options(job: LaunchJob) -> list[str]:
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


def submit(
    job: LaunchJob, run: LaunchedRun, remembered: Remembered, path: Path | None
) -> LaunchedRun:
    """Hand the file to sbatch.

    Raises:
        InputError: A key is missing, or the folder cannot be written.
    """
    script = render(job, "slurm", path)  # complains before anything is remembered
    run = remembered.write(run)
    try:
        number = _submit(job, script)
    except RidgelineError:
        remembered.forget(run)
        raise
    return remembered.change(run, phase="submitted", job_id=number)


def _submit(job: LaunchJob, script: str) -> str:
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


def recover(run: LaunchedRun, remembered: Remembered) -> LaunchedRun | None:
    """Find the newest job of this name and user, whose launcher died in sbatch."""
    lines = _call("squeue", "--me", "--noheader", f"--name={run.name}", "--format=%i").split()
    if lines:
        return remembered.change(run, phase="submitted", job_id=lines[-1])
    remembered.forget(run)
    return None


def status(run: LaunchedRun) -> RunStatus:
    """How the run stands; a state that is none of the known has failed."""
    answer = _ask(run.job_id)
    state = _STATES.get(answer.state, "failed")
    why, cure = "", ""
    if state == "pending":
        waiting = why_slurm_waits(answer.reason)
        why, cure = waiting.why, waiting.cure
    elif state == "failed":
        why = f"{answer.state.lower().replace('_', ' ')}, {answer.reason}"
    elif state == "lost":
        why, cure = "Slurm does not know its number any more", "see the log in its folder"
    nodes = run.ranks // run.ranks_per_node
    return RunStatus(name=run.name, place=run.place, state=state, why=why, cure=cure, nodes=nodes)


def _ask(job_id: str) -> QueueAnswer:
    """Ask the queue how a job stands, or the books when it has left the queue."""
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


def cancel(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Take the job off the queue, or end it."""
    _call("scancel", run.job_id)
    return remembered.change(run, phase="cancelled")


def open_log(run: LaunchedRun, remembered: Remembered) -> LogReader:  # noqa: ARG001
    """Open the one log that srun writes, with a label before each line."""
    log = Path(run.folder) / "logs" / f"slurm-{run.job_id}.log"

    def read() -> list[LogLine]:
        text = log.read_text(errors="replace") if log.exists() else ""
        return [srun_line(raw) for raw in text.splitlines()]

    return WholeLog(read)


def srun_line(raw: str) -> LogLine:
    """Parse a line of `srun --label`: `NODE: text`.

    >>> srun_line(" 1: [rank4]:step 3").rank
    4
    """
    node, colon, text = raw.partition(": ")
    if not colon or not node.strip().isdigit():
        return LogLine(seconds=0.0, node=0, rank=None, text=raw)
    return parse_line(text, node=int(node))


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
