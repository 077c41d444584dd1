"""Nodes over ssh, or this machine alone: start torchrun on each, watch, merge, end all together.

Every remote command watches its own input: when that closes (the launcher ends, or dies, or the
connection does) it sends torchrun SIGTERM, waits the grace that the ranks have to save, and kills.
So nothing is left behind on any host, whatever happens to the launcher. Each host writes the
recipe itself; only checkpoints need a shared folder.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ChildDied, InputError, Interrupted, RidgelineError
from ridgeline.launch.cluster_file import needed
from ridgeline.launch.job import RECIPE, LaunchJob, torchrun_command
from ridgeline.launch.merge import (
    LogLine,
    LogReader,
    WholeLog,
    first_error,
    merged,
    parse_line,
    read_lines,
)
from ridgeline.launch.remembered import Remembered, launcher_lives
from ridgeline.records.launched_run import LaunchedRun, Place, RunStatus, State

LOGS = "launch"
"""Folder of one log for each host, below the state or run folder."""
ERRORS = "errors"
"""Where a rank leaves what a user can mend: `rank0.txt` with an exit code and one line."""
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 2.0


_OUTCOMES: dict[str, State] = {"done": "done", "cancelled": "cancelled"}


def render(job: LaunchJob, place: Place, path: Path | None) -> str:
    """Render the command of each host.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    if place == "local":
        return shlex.join(host_commands(job, local=True)[0].words) + "\n"
    keys = {"ssh.hosts": "the machines to run on, the first is where they meet"}
    if job.num_nodes > 1:
        keys["run.folder"] = "a folder that every host sees, for checkpoints"
    needed(job.cluster, path, keys)
    if len(job.cluster.ssh.hosts) < job.num_nodes:
        raise InputError(
            f"{path}: ssh.hosts has {len(job.cluster.ssh.hosts)}, but the layout fills"
            f" {job.num_nodes} nodes of {job.ranks_per_node} ranks"
        )
    commands = host_commands(job, local=False)
    return "".join(f"# {one.host}\n{shlex.join(one.words)}\n" for one in commands)


def recover(run: LaunchedRun, remembered: Remembered) -> None:
    """Forget a run whose launcher died before anything ran: it would have been the run."""
    remembered.forget(run)


def status(run: LaunchedRun) -> RunStatus:
    """How a run stands that lives as long as its launcher."""
    nodes = run.ranks // run.ranks_per_node
    state: State = "running"
    why = ""
    if run.phase == "ended":
        word, _, why = run.outcome.partition(": ")
        state = _OUTCOMES.get(word, "failed")
    elif not launcher_lives(run):
        state, why = "lost", "its launcher died; the ranks saw that and ended"
    return RunStatus(name=run.name, place=run.place, state=state, why=why, nodes=nodes)


def cancel(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Ask the launcher to end; it ends its ranks."""
    if run.launcher_host != socket.gethostname():
        raise InputError(f"{run.name} was launched on {run.launcher_host}: cancel it there")
    if run.phase == "ended" or not launcher_lives(run):
        return remembered.change(run, phase="ended", outcome=run.outcome or "cancelled")
    os.kill(run.launcher_pid, signal.SIGTERM)
    return run


def open_log(run: LaunchedRun, remembered: Remembered) -> LogReader:
    """Open the logs that the launcher keeps of each host."""
    logs = remembered.folder / run.name
    return WholeLog(
        lambda: read_host_logs(logs, [path.stem for path in sorted(logs.glob("*.log"))])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommand:
    """What one host runs."""

    host: str
    """The host as ssh knows it; empty for this machine, without ssh."""
    words: tuple[str, ...]
    """The words of the local process: ssh with the remote line, or a shell with it."""


def host_commands(job: LaunchJob, *, local: bool) -> list[HostCommand]:
    """One command for each node, in the order of `ssh.hosts`."""
    ssh = job.cluster.ssh
    hosts = ("",) if local else ssh.hosts[: job.num_nodes]
    found = []
    for index, host in enumerate(hosts):
        meeting = None if local or job.num_nodes == 1 else ssh.rendezvous or ssh.hosts[0]
        line = _remote_line(job, meeting, "true" if index == 0 else "false", host or "local")
        start = ("sh", "-c", line) if local else (*ssh.command, host, line)
        found.append(HostCommand(host=host, words=start))
    return found


def _remote_line(job: LaunchJob, meeting: str | None, is_host: str, host: str) -> str:
    """Shell for one host: write the recipe, run torchrun, end it when our input closes."""
    torchrun = torchrun_command(
        job,
        host=meeting,
        is_host="" if meeting is None else is_host,
        log_folder=f"{job.folder}/logs/{host}",
    )
    folder = shlex.quote(job.folder)
    part = f"{folder}/.{RECIPE}.{shlex.quote(host)}"
    settings = [f"{key}={value}" for key, value in sorted(job.environment.items())]
    run = shlex.join(["env", *settings, *torchrun])
    grace = job.cluster.run.grace_seconds
    clean = f"rm -rf {folder}/{ERRORS}; " if is_host == "true" else ""
    return (
        f"{clean}mkdir -p {folder} && printf %s {shlex.quote(job.recipe_text)} > {part}"
        f" && mv -f {part} {folder}/{RECIPE} && cd {folder} || exit 1\n"
        "exec 3<&0\n"
        f"setsid {run} </dev/null 3<&- 2>&1 & t=$!\n"
        "{ cat <&3 >/dev/null; kill -TERM $t; n=0;"
        f" while kill -0 $t && [ $n -lt {grace} ]; do sleep 1; n=$((n+1)); done;"
        " kill -KILL -- -$t; } >/dev/null 2>&1 & w=$!\n"
        "exec 3<&-\n"
        "wait $t; c=$?; kill $w 2>/dev/null; exit $c"
    )


def run_on_hosts(
    job: LaunchJob,
    commands: list[HostCommand],
    logs: Path,
    on_line: Callable[[LogLine], None],
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run all of them to the end.

    Args:
        job: What is launched.
        commands: What `host_commands` returned.
        logs: Folder on this machine for one log of each host, with times.
        on_line: Called with each line as it arrives.
        watch: Called several times a second.

    Raises:
        ChildDied: A host failed, and too few are left; the message has the first error.
        Interrupted: Ctrl-C or SIGTERM; all have ended.
    """
    logs.mkdir(parents=True, exist_ok=True)
    lines: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
    nodes: list[_Node] = []
    try:
        for index, command in enumerate(commands):
            nodes.append(_Node(index, command, logs, lines))
        _watch(job, nodes, lines, on_line, watch)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; the ranks of {job.name} were told to save and ended"
        ) from None
    finally:
        _end_all(nodes, job.cluster.run.grace_seconds)
        for node in nodes:
            node.finish()
        _drain(lines, on_line)
    failed = [node for node in nodes if node.process.returncode]
    if len(nodes) - len(failed) < job.min_nodes:
        told = _ranks_own_words(Path(job.folder))
        raise told or ChildDied(_what_failed(nodes, failed, logs))


def _ranks_own_words(folder: Path) -> RidgelineError | None:
    """What a rank left for the user, where its folder can be seen from this machine."""
    found = sorted((folder / ERRORS).glob("rank*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        return None
    code, _, message = found[0].read_text().strip().partition("\n")
    return InputError(message) if code == "2" else RidgelineError(message)


def _watch(
    job: LaunchJob,
    nodes: list[_Node],
    lines: queue.SimpleQueue[LogLine],
    on_line: Callable[[LogLine], None],
    watch: Callable[[], None],
) -> None:
    """Until all have ended, or so many failed that the rest cannot go on."""
    while True:
        _drain(lines, on_line)
        watch()
        codes = [node.process.poll() for node in nodes]
        failed = sum(1 for code in codes if code)
        if all(code is not None for code in codes) or len(nodes) - failed < job.min_nodes:
            return
        time.sleep(_POLL_SECONDS)


def _drain(lines: queue.SimpleQueue[LogLine], on_line: Callable[[LogLine], None]) -> None:
    while not lines.empty():
        on_line(lines.get())


def _end_all(nodes: list[_Node], grace_seconds: float) -> None:
    """Close every input, which ends the far side; then wait, then kill what is here."""
    for node in nodes:
        node.close_input()
    deadline = time.monotonic() + grace_seconds + 5.0
    for node in nodes:
        try:
            node.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            node.process.send_signal(signal.SIGKILL)
            node.process.wait()


def _what_failed(nodes: list[_Node], failed: list[_Node], logs: Path) -> str:
    error = first_error(read_host_logs(logs, [node.label for node in nodes]))
    first = min(failed, key=lambda node: node.ended_seconds)
    told = f": {error.prefixed}" if error else ""
    return f"{first.label} ended with {first.process.returncode}{told}; logs are in {logs}"


def read_host_logs(logs: Path, labels: list[str]) -> list[LogLine]:
    """All hosts' logs so far, merged."""
    texts = [
        (index, path.read_text(errors="replace").splitlines())
        for index, label in enumerate(labels)
        if (path := logs / f"{label}.log").exists()
    ]
    streams = [read_lines(text, node=index) for index, text in texts]
    return list(merged(streams))


class _Node:
    """One host's process, and the thread that reads what it says."""

    def __init__(
        self,
        index: int,
        command: HostCommand,
        logs: Path,
        lines: queue.SimpleQueue[LogLine],
    ) -> None:
        self.label = f"{index:03d}-{command.host or 'local'}"
        self.ended_seconds = float("inf")
        self._index = index
        self._lines = lines
        self._log = (logs / f"{self.label}.log").open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C is ours alone: ssh must live to carry the order to end.
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for raw in self.process.stdout or ():
            self._log.write(f"{time.time():.6f} {raw.rstrip()}\n")
            self._log.flush()
            self._lines.put(
                parse_line(
                    raw.rstrip(),
                    node=self._index,
                    otherwise=time.time(),
                )
            )
        self.ended_seconds = time.monotonic()

    def close_input(self) -> None:
        """Tell the far side to end."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()

    def finish(self) -> None:
        """Read what is left, close the log."""
        self._thread.join(_DRAIN_SECONDS)
        if self.process.stdout is not None and not self._thread.is_alive():
            self.process.stdout.close()
            self._log.close()
