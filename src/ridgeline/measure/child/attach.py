"""Called by the bootstrap once torch is imported: build the agent and start listening."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.conversation import Conversation
from ridgeline.measure.child.habits import watch_habits
from ridgeline.measure.child.hooks import Hooks
from ridgeline.measure.child.points import Points
from ridgeline.measure.child.saved_files import SavedFiles
from ridgeline.measure.child.seeds import fix_seeds, offset_seeds
from ridgeline.measure.child.shake import Shaker
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.guard.inside import keeper_of
from ridgeline.measure.guard.view import SESSION_NAME
from ridgeline.measure.wire import Session


def attach(session_folder: str) -> tuple[Agent, Session]:
    """Install the interception in this process; returns what a technique's installer needs."""
    folder = Path(session_folder)
    session = msgspec.json.decode((folder / SESSION_NAME).read_bytes(), type=Session)
    points = Points()
    agent = Agent(points, assume_inference=session.assume_inference, recording=session.report)
    hooks = Hooks(agent)
    points.time_compiled_call = hooks.time_compiled_call
    hooks.install()
    if session.fix_seed:
        fix_seeds(session.seed_offset)
    if session.seed_offset:
        offset_seeds(session.seed_offset)
    if session.shake:
        Shaker(session.shake).install(points)
    if session.report:
        watch_habits(agent)
        _watch_saves(agent, folder)
        Conversation(agent, folder)
    return agent, session


def _watch_saves(agent: Agent, session_folder: Path) -> None:
    def saved(seconds: float) -> None:
        if agent.is_mine():
            agent.watched.switches.save_seconds += seconds
            agent.watched.switches.save_site = user_site()

    SavedFiles(keeper_of(str(session_folder)), saved).install()
