"""The five places as one: what would be started there, starting it, asking, ending.

`written` is what `--dry-run` prints: the exact lines, file or manifest, without a cluster.
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ridgeline.errors import InputError, RidgelineError
from ridgeline.launch import hosts, ray_cluster, slurm
from ridgeline.launch.check import check_manifests, read_text
from ridgeline.launch.cluster_file import needed
from ridgeline.launch.job import Job
from ridgeline.launch.kube import run as kube
from ridgeline.launch.kube.api import Server, connect
from ridgeline.launch.kube.follow import Follower, follow
from ridgeline.launch.kube.manifest import as_yaml, manifests
from ridgeline.launch.merge import LogLine, parse_line, read_lines, resumed
from ridgeline.launch.pending import why_slurm_waits
from ridgeline.launch.remembered import Remembered, launcher_lives
from ridgeline.launch.slurm import QueueAnswer
from ridgeline.records.launched_run import LaunchedRun, Place, RunStatus, State

_OUTCOMES: dict[str, State] = {"done": "done", "cancelled": "cancelled"}
_ENDED: tuple[State, ...] = ("done", "failed", "cancelled", "lost")
_POLL_SECONDS = 1.0
_SETTLE_SECONDS = 0.5


def written(job: Job, place: Place, path: Path | None) -> str:
    """What would be started, as text that can be run or applied by hand.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    if place == "local":
        return shlex.join(hosts.host_commands(job, local=True)[0].words) + "\n"
    if place == "torchrun":
        _check_hosts(job, path)
        commands = hosts.host_commands(job, local=False)
        return "".join(f"# {one.host}\n{shlex.join(one.words)}\n" for one in commands)
    if place == "slurm":
        return slurm.sbatch_file(job, path)
    if place == "ray" and job.cluster.ray.address:
        needed(job.cluster, "run.folder", path, "a folder that every node sees, for checkpoints")
        address = shlex.quote(job.cluster.ray.address)
        line = shlex.quote(ray_cluster.entry_line(job))
        return f"ray job submit --address {address} --submission-id {job.name} -- sh -c {line}\n"
    engine = "ray" if place == "ray" else "kubernetes"
    return as_yaml(manifests(job, engine="ray" if engine == "ray" else "kubernetes", path=path))


def _check_hosts(job: Job, path: Path | None) -> None:
    needed(job.cluster, "ssh.hosts", path, "the machines to run on, the first is where they meet")
    if len(job.cluster.ssh.hosts) < job.num_nodes:
        raise InputError(
            f"{path}: ssh.hosts has {len(job.cluster.ssh.hosts)}, but the layout fills"
            f" {job.num_nodes} nodes of {job.ranks_per_node} ranks"
        )
    if job.num_nodes > 1:
        needed(job.cluster, "run.folder", path, "a folder that every host sees, for checkpoints")


def remembered_run(job: Job, place: Place) -> LaunchedRun:
    """The record of a run that is about to be started."""
    on_kubernetes = place == "kubernetes" or (place == "ray" and not job.cluster.ray.address)
    return LaunchedRun(
        name=job.name,
        place=place,
        phase="submitting",
        folder=job.folder,
        created_seconds=time.time(),
        launcher_host=socket.gethostname(),
        launcher_pid=os.getpid(),
        ranks=job.num_nodes * job.ranks_per_node,
        ranks_per_node=job.ranks_per_node,
        address=job.cluster.ray.address if place == "ray" else "",
        namespace=job.cluster.kubernetes.namespace if on_kubernetes else "",
        context=job.cluster.kubernetes.context if on_kubernetes else "",
    )


def refuse_twins(job: Job, remembered: Remembered) -> None:
    """A name that is in use by a run that has not ended is no name for another.

    Raises:
        InputError: There is such a run.
    """
    for run in remembered.all():
        if run.name != job.name:
            continue
        current = recovered(run, remembered)
        if current is not None and status(current).state not in _ENDED:
            raise InputError(
                f"a run {job.name!r} on {run.place} has not ended; `ridgeline launch cancel"
                f" {job.name}` ends it, --name gives this one another name"
            )


def run_here(
    job: Job,
    place: Place,
    remembered: Remembered,
    say: Callable[[LogLine], None],
    watch: Callable[[], None] = lambda: None,
) -> LaunchedRun:
    """Run on this machine or over ssh, to the end; the run lives as long as this process.

    Raises:
        ChildDied: It failed; the message has the first error.
        Interrupted: Ctrl-C.
    """
    commands = hosts.host_commands(job, local=place == "local")
    run = remembered.write(remembered_run(job, place))
    run = remembered.change(run, phase="submitted")
    logs = remembered.folder / run.name
    for stale in logs.glob("*.log"):
        stale.unlink()
    outcome = "failed: the launcher itself failed"
    try:
        hosts.run_on_hosts(job, commands, logs, say, watch)
        outcome = "done"
    except RidgelineError as error:
        outcome = "cancelled" if error.exit_code == 130 else f"failed: {error}"
        raise
    finally:
        run = remembered.change(run, phase="ended", outcome=outcome)
    return run


def submit(job: Job, place: Place, path: Path | None, remembered: Remembered) -> LaunchedRun:
    """Hand the run to Slurm, Kubernetes or Ray.

    Raises:
        InputError: A key is missing, or the place refuses the run.
    """
    text = written(job, place, path)  # complains before anything is remembered
    run = remembered_run(job, place)
    if place == "slurm":
        run = remembered.write(run)
        try:
            number = slurm.submit(job, text)
        except RidgelineError:
            remembered.forget(run)
            raise
        return remembered.change(run, phase="submitted", job_id=number)
    if run.address:
        run = remembered.write(run)
        try:
            ray_cluster.submit(job)
        except RidgelineError:
            remembered.forget(run)
            raise
        return remembered.change(run, phase="submitted", job_id=job.name)
    server = _server(run)
    documents = manifests(job, engine="ray" if place == "ray" else "kubernetes", path=path)
    _check(text)
    return kube.submit(server, documents, remembered.write(run), remembered)


def _check(text: str) -> None:
    """Refuse what the server would refuse, or take and never start.

    Raises:
        InputError: The first such problem.
    """
    for verdict in check_manifests(read_text(text, "manifest")):
        for problem in verdict.problems:
            if problem.severity == "error":
                raise InputError(
                    f"{verdict.kind} {verdict.name}: {problem.field}: {problem.message};"
                    f" {problem.cure}"
                )


def _server(run: LaunchedRun) -> Server:
    return connect(run.namespace, run.context)


def recovered(run: LaunchedRun, remembered: Remembered) -> LaunchedRun | None:
    """The run, after a submission that its launcher did not live to finish; None: it is no more."""
    if run.phase != "submitting" or launcher_lives(run):
        return run
    if run.namespace:
        return kube.recover(_server(run), run, remembered)
    number = slurm.find_submitted(run.name) if run.place == "slurm" else ""
    if number or run.address:
        return remembered.change(run, phase="submitted", job_id=number or run.name)
    remembered.forget(run)
    return None


def find(name: str, remembered: Remembered) -> LaunchedRun:
    """The run of that name, its submission finished or undone if its launcher died.

    Raises:
        InputError: There is none.
    """
    run = recovered(remembered.read(name), remembered)
    if run is None:
        raise InputError(f"{name}: its launch was cut short before anything ran; launch it again")
    return run


def status(run: LaunchedRun) -> RunStatus:
    """How the run stands."""
    if run.place in ("local", "torchrun"):
        return _here(run)
    if run.phase == "cancelled":
        return RunStatus(name=run.name, place=run.place, state="cancelled")
    if run.place == "slurm":
        return slurm_status(run, slurm.ask(run.job_id))
    if run.address:
        return ray_cluster.status(run)
    server = _server(run)
    found = kube.status(run, kube.look(server, run))
    if found.restarts or found.detail:
        line = resumed(Follower(server, run).read())
        more = (line.prefixed,) if line else ()
        found = msgspec.structs.replace(found, detail=(*found.detail, *more))
    return found


def _here(run: LaunchedRun) -> RunStatus:
    """Of a run that lives as long as its launcher."""
    nodes = run.ranks // run.ranks_per_node
    state: State = "running"
    why = ""
    if run.phase == "ended":
        word, _, why = run.outcome.partition(": ")
        state = _OUTCOMES.get(word, "failed")
    elif not launcher_lives(run):
        state, why = "lost", "its launcher died; the ranks saw that and ended"
    return RunStatus(name=run.name, place=run.place, state=state, why=why, nodes=nodes)


_SLURM_STATES: dict[str, State] = {
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


def slurm_status(run: LaunchedRun, answer: QueueAnswer) -> RunStatus:
    """How Slurm's answer reads; a state that is none of the known has failed."""
    state = _SLURM_STATES.get(answer.state, "failed")
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


def cancel(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """End the run and what belongs to it; checkpoints stay."""
    if run.place in ("local", "torchrun"):
        return _cancel_here(run, remembered)
    if run.place == "slurm":
        slurm.cancel(run.job_id)
    elif run.address:
        ray_cluster.cancel(run)
    else:
        return kube.cancel(_server(run), run, remembered)
    return remembered.change(run, phase="cancelled")


def _cancel_here(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Ask the launcher to end; it ends its ranks."""
    if run.launcher_host != socket.gethostname():
        raise InputError(f"{run.name} was launched on {run.launcher_host}: cancel it there")
    if run.phase == "ended" or not launcher_lives(run):
        return remembered.change(run, phase="ended", outcome=run.outcome or "cancelled")
    import signal

    os.kill(run.launcher_pid, signal.SIGTERM)
    return run


def log_lines(run: LaunchedRun, remembered: Remembered, *, following: bool) -> Iterator[LogLine]:
    """Lines of all ranks, ordered by time; with `following`, until the run has ended."""

    def ended() -> bool:
        return not following or status(remembered.read(run.name)).state in _ENDED

    if run.namespace:
        yield from follow(Follower(_server(run), run), ended)
        return
    read = 0
    while True:
        over = ended()
        # Nodes write at the same time: what is a moment old has no earlier line to come.
        settled = float("inf") if over else time.time() - _SETTLE_SECONDS
        lines = [line for line in _all_lines(run, remembered) if line.seconds < settled]
        yield from lines[read:]
        read = len(lines)
        if over:
            return
        time.sleep(_POLL_SECONDS)


def _all_lines(run: LaunchedRun, remembered: Remembered) -> list[LogLine]:
    """Everything so far, in an order to which later lines are added at the end."""
    if run.place in ("local", "torchrun"):
        logs = remembered.folder / run.name
        labels = [path.stem for path in sorted(logs.glob("*.log"))]
        return hosts.read_host_logs(logs, labels)
    if run.address:
        return list(read_lines(ray_cluster.logs(run), node=0))
    log = Path(run.folder) / "logs" / f"slurm-{run.job_id}.log"
    if not log.exists():
        return []
    return [srun_line(raw) for raw in log.read_text(errors="replace").splitlines()]


def srun_line(raw: str) -> LogLine:
    """A line of `srun --label`: `NODE: text`.

    >>> srun_line(" 1: [rank4]:step 3").rank
    4
    """
    node, colon, text = raw.partition(": ")
    if not colon or not node.strip().isdigit():
        return LogLine(seconds=0.0, node=0, rank=None, text=raw)
    return parse_line(text, node=int(node))
