"""Called by the bootstrap once torch is imported: build the agent and start listening."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.alone import lend_size
from ridgeline.measure.child.call_ends import CallEnds
from ridgeline.measure.child.conversation import Conversation
from ridgeline.measure.child.entropy import pin_entropy
from ridgeline.measure.child.guard import attempt, write_to
from ridgeline.measure.child.habits import watch_habits
from ridgeline.measure.child.hooks import Hooks
from ridgeline.measure.child.nvtx_ranges import NvtxRanges
from ridgeline.measure.child.points import Points
from ridgeline.measure.child.repeated_calls import RepeatedCalls
from ridgeline.measure.child.saved_files import SavedFiles
from ridgeline.measure.child.seeds import fix_seeds, offset_seeds
from ridgeline.measure.child.shake import Shaker
from ridgeline.measure.child.updates import UpdateWatch
from ridgeline.measure.guard.inside import keeper_of
from ridgeline.measure.guard.view import SESSION_NAME
from ridgeline.measure.wire import Session


def attach(session_folder: str) -> tuple[Agent, Session]:
    """Install the interception in this process; returns what a technique's installer needs."""
    folder = Path(session_folder)
    session = _session(folder)
    points = Points()
    calls = CallEnds(assumed=session.calls.assumed, few=session.calls.few)
    agent = Agent(points, calls=calls, recording=session.report)
    if session.calls.repeats:
        agent.repeats = RepeatedCalls(session.calls.repeats)
    agent.updates = UpdateWatch(session.weighed_steps)
    agent.watched.main.chosen = session.calls.model
    agent.watched.chosen_optimizer = session.calls.optimizer
    if session.nvtx:
        agent.clock.listener = NvtxRanges()
    hooks = Hooks(agent)
    points.time_compiled_call = hooks.time_compiled_call
    if session.report:
        write_to(folder)
    attempt(hooks.install, otherwise=None)
    if session.terminal is not None:
        attempt(lend_size, session.terminal, otherwise=None)
    if session.fix_seed:
        attempt(fix_seeds, session.seed_offset, otherwise=None)
        attempt(pin_entropy, session.seed_offset, otherwise=None)
    if session.seed_offset:
        attempt(offset_seeds, session.seed_offset, otherwise=None)
    if session.shake:
        attempt(Shaker(session.shake).install, points, otherwise=None)
    if session.report:
        attempt(watch_habits, agent, otherwise=None)
        attempt(agent.stated.watch, otherwise=None)
        attempt(_watch_saves, agent, folder, otherwise=None)
        attempt(Conversation, agent, folder, session.waits, otherwise=None)
    return agent, session


def _session(folder: Path) -> Session:
    return msgspec.json.decode((folder / SESSION_NAME).read_bytes(), type=Session)


def _watch_saves(agent: Agent, session_folder: Path) -> None:
    def saved(seconds: float) -> None:
        if agent.is_mine():
            agent.watched.count("save", seconds)

    SavedFiles(keeper_of(str(session_folder)), saved).install()
