"""Which runs stay alive, and which make room."""

from __future__ import annotations

from typing import Any, Self

import pytest

from ridgeline.measure.wire import Applied
from ridgeline.tune import pool as pools
from ridgeline.tune.pool import Pool, Variant

_OTHERS = (
    "channels-last",
    "fused-optimizer",
    "gc-freeze",
    "malloc-retain",
    "onnx-runtime",
    "openvino",
    "set-to-none",
)


class _Conductor:
    """A run that is alive until it is told to leave."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.ended, self.is_running = False, False

    def __enter__(self) -> Self:
        self.is_running = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_running = False


def _variant(*names: str) -> Variant:
    return Variant(command=["train.py"], stack=tuple(Applied(technique=name) for name in names))


@pytest.mark.parametrize(("room", "stay"), [(6, True), (4, True), (3, False), (1, False)])
def test_both_sides_of_the_last_question_stay_alive_where_there_is_room_for_two_more(
    monkeypatch: pytest.MonkeyPatch, room: int, stay: bool
) -> None:
    monkeypatch.setattr(pools, "Conductor", _Conductor)
    pool, script, stack = Pool(room=room), _variant(), _variant("bf16-autocast", "compile")
    pool.kept = frozenset((script.key, stack.key))
    others = [_variant(name) for name in _OTHERS]
    for one in (script, stack, *others):
        pool.take(one)
    alive = [one for one in (script, stack, *others) if pool.alive(one) is not None]
    assert len(alive) == room
    assert (script in alive and stack in alive) is stay
    assert alive[-1] == others[-1]
    pool.close()


def test_a_new_run_catches_up_only_where_steps_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "Conductor", _Conductor)
    pool, script = Pool(), _variant()
    assert pool.lead_of(script) == 0, "none is alive"
    live = pool.take(script)
    live.index = 30
    assert pool.lead_of(script) == 30
    live.sizes = {(8, 0)}
    assert pool.lead_of(script) == 0
    live.breaks = [0, 10, 20, 30]
    assert pool.lead_of(script) == 5
    pool.close()
