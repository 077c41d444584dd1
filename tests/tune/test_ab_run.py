"""Two real runs, measured in turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ridgeline.measure.statistics.cycles import StepCycle
from ridgeline.measure.statistics.intervals import RatioInterval
from ridgeline.measure.statistics.sequential import LOOKS
from ridgeline.measure.wire import Applied, Hello
from ridgeline.records import LedgerRow, Site
from ridgeline.tune import ab_plan
from ridgeline.tune import ab_run as ab_runs
from ridgeline.tune.ab_plan import ABPlan
from ridgeline.tune.ab_result import ABRun
from ridgeline.tune.ab_run import run_ab
from ridgeline.tune.losses import check_losses
from ridgeline.tune.pool import Live, Pool, Variant, VariantFailed, period_of
from ridgeline.tune.row import Asked, measured
from ridgeline.tune.updates import Updates

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = [str(SCRIPTS / "waits_for_data.py")]
UNEVEN = [str(SCRIPTS / "uneven_batches.py")]
WORKERS = Applied(technique="loader-workers", options={"num_workers": 2})
AS_IT_IS = Variant(command=SCRIPT)
FED = Variant(command=SCRIPT, stack=(WORKERS,))
pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.alone]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain of a half needs no long look."""
    monkeypatch.setattr(ab_runs, "_BLOCK_SECONDS", 0.2)


@pytest.fixture
def pool() -> Iterator[Pool]:
    one = Pool()
    yield one
    one.close()


@pytest.fixture(scope="module")
def used(warm: None) -> Iterator[tuple[Pool, ABRun]]:
    """A pool in which an A/B run took place, and its result."""
    one = Pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ab_runs, "_BLOCK_SECONDS", 0.2)
        yield one, run_ab(one, AS_IT_IS, FED, plan())
    one.close()


def plan(seconds: float = 60.0, *, resident: bool = True) -> ABPlan:
    return ABPlan(threshold=0.01, seconds=seconds, resident=resident)


def pid_of(pool: Pool, variant: Variant) -> int:
    return pool.take(variant).hellos[0].pid


def test_a_real_gain_is_measured_and_its_losses_compared(used: tuple[Pool, ABRun]) -> None:
    pool, result = used
    assert result.interval.low > 1.01
    assert "loader-workers" in pool.take(FED).applied
    assert len(result.a_losses) > 12
    assert result.a_losses[:12] == result.b_losses[:12]
    assert result.b_peak_memory_bytes > 0
    assert result.b_non_finite == 0


@pytest.mark.slow
def test_a_script_of_few_steps_is_started_again_until_it_is_decided(pool: Pool) -> None:
    short = [*SCRIPT, "180"]  # 45 steps
    slow, fed = Variant(command=short), Variant(command=short, stack=(WORKERS,))
    pool.take(slow).steps(36)  # a profile took as many
    result = run_ab(pool, slow, fed, plan())
    assert pool.length == 44
    assert result.interval.rounds >= 3
    assert result.interval.low > 1.01


def test_a_large_gain_needs_few_rounds(used: tuple[Pool, ABRun]) -> None:
    assert 3 <= used[1].interval.rounds <= 12


def test_the_next_question_goes_on_with_the_process_that_is_alive(
    used: tuple[Pool, ABRun],
) -> None:
    pool, before = used
    known = pid_of(pool, FED)
    other = Variant(command=SCRIPT, stack=(Applied(technique="gc-freeze"), WORKERS))
    result = run_ab(pool, FED, other, plan(1.0))
    assert pid_of(pool, FED) == known
    assert len(result.a_losses) > len(before.b_losses), "it went on from where it stood"


@pytest.mark.slow
def test_an_incumbent_that_died_is_started_again(used: tuple[Pool, ABRun]) -> None:
    pool, _ = used
    known = pid_of(pool, AS_IT_IS)
    died = pool.take(AS_IT_IS).conductor._process
    assert died is not None
    os.kill(known, signal.SIGKILL)
    died.wait(20)
    result = run_ab(pool, AS_IT_IS, FED, plan())
    assert result.interval.low > 1.01
    assert pid_of(pool, AS_IT_IS) != known


@pytest.mark.slow
def test_steps_of_uneven_work_are_compared_at_the_same_step(pool: Pool) -> None:
    one, other = Variant(command=UNEVEN), Variant(command=UNEVEN, cwd=SCRIPTS)
    first = pool.take(one)
    first.steps(31)
    result = run_ab(pool, one, other, plan(2.0))
    sides = [pool.take(one), pool.take(other)]
    assert period_of(sides) is None
    assert sides[0].index == sides[1].index
    assert result.rounds >= 1


def test_a_critics_steps_stay_steps_in_every_run(pool: Pool) -> None:
    """Its generator steps less often, which is not seen before it has stepped twice."""
    command = [str(SCRIPTS / "critic.py")]
    with pool.borrow(Variant(command=command)) as script:
        script.steps(2)
        script.steps(4, facts=True)
    other = pool.take(Variant(command=command, cwd=SCRIPTS))
    other.steps(16)
    assert (script.anchor, other.anchor) == (1, 1)
    assert pool.calls.optimizer == 1


class Counted:
    """A run whose steps take as long as their number says, with sizes as told."""

    def __init__(self, sizes: set[tuple[int, int]], hello: str = "cpu") -> None:
        self.seconds: list[float] = []
        self.cpu_seconds = 0.0
        self.hellos = [Hello(pid=1, rank=0, world_size=1, device=hello)]
        self.sizes = sizes
        self.evaluated = self.ended = False
        self.breaks = [0]
        self.start_seconds = 0.0
        self.settled_after = 0
        self.applied: dict[str, str] = {}
        self.places: dict[str, list[Site]] = {}
        self.losses: list[float] = []
        self.updates = Updates()
        self.peak_memory_bytes = self.non_finite = 0
        self.startup_seconds = None

    @property
    def index(self) -> int:
        return 1000 + len(self.seconds)

    def steps(self, count: int) -> None:
        self.seconds += [float(self.index + n) for n in range(count)]
        self.cpu_seconds += 0.5 * count


@pytest.mark.parametrize("sizes", [{(8, 0)}, {(8, 0), (3, 0)}])
def test_both_sides_time_the_same_steps_where_work_differs(sizes: set[tuple[int, int]]) -> None:
    even = len(sizes) == 1
    sides: list[Any] = [Counted(sizes), Counted(sizes)]
    result = ABRun()
    for turn in range(6):
        assert ab_runs._round(sides, 1, 3, result, flip=turn % 2 == 1, fresh=turn == 0, even=even)
    if len(sizes) > 1:
        assert result.a_steps == result.b_steps
    else:
        assert len(sides[0].seconds) == 6 * 3 + 4, "who ran last is warm"


class Epochs(Counted):
    """A run whose workers start every seventh step, which then takes 2.5 times as long."""

    def __init__(self, begun: int, speed: float) -> None:
        super().__init__({(8, 0)})
        self.begun, self.speed = begun, speed
        self.steps(30)

    @property
    def index(self) -> int:
        return self.begun + len(self.seconds)

    def steps(self, count: int) -> None:
        numbers = range(self.index + 1, self.index + 1 + count)
        self.seconds += [(2.5 if number % 7 == 0 else 1.0) / self.speed for number in numbers]
        self.breaks += [number for number in numbers if number % 7 == 0]
        self.cpu_seconds += 0.5 * count


def test_steps_are_compared_at_the_same_place_of_short_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides: dict[str, Any] = {"a": Epochs(0, 1.0), "b": Epochs(3, 2.0)}
    monkeypatch.setattr(ab_runs, "_ready", lambda _pool, name, _variant, _plan: sides[name])
    monkeypatch.setattr(ab_runs, "took_effect", lambda *_: True)
    stub: Any = SimpleNamespace(length=None, cycle=None, deadline=0.0)
    result = ABRun()
    ab_runs._side_by_side(stub, AS_IT_IS, FED, plan(600.0), result)
    assert period_of(list(sides.values())) == 7
    assert (sides["a"].index - sides["b"].index) % 7 == 0
    assert len(set(result.a_rounds)) > 1, "no block is a whole epoch"
    assert result.a_rounds == pytest.approx([2 * seconds for seconds in result.b_rounds])


def test_a_run_knows_in_which_steps_its_loader_began(pool: Pool) -> None:
    live = pool.take(Variant(command=[str(SCRIPTS / "short_epochs.py")]))
    live.steps(5)
    live.steps(4)
    assert live.breaks == [0, 4, 8]
    live.steps(12)
    assert period_of([live]) == 4


def test_work_repeats_only_as_far_as_that_was_seen() -> None:
    side: Any = Epochs(0, 1.0)
    assert period_of([side]) == 7
    side.evaluated = True
    assert period_of([side]) == 7, "every seventh step evaluates"
    side.breaks.append(side.breaks[-1] + 2)
    assert period_of([side]) is None, "who knows what comes after"
    side.evaluated = False
    assert period_of([side]) == 1, "workers start now and then"
    side.sizes = {(8, 0), (3, 0)}
    assert period_of([side]) is None
    assert period_of([cast("Live", Counted({(8, 0)}))]) == 1


class Slow(Counted):
    """A run that has just begun, of steps as long as told; the first still settles."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__({(8, 0)})
        self.step_seconds = step_seconds
        self.is_warm = False
        self.preparing: dict[str, str] = {}

    @property
    def index(self) -> int:
        return len(self.seconds)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.seconds.append(self.step_seconds * (1.0 if self.seconds else 1.3))

    def warmed_up(self) -> None:
        self.is_warm = True


@pytest.mark.parametrize(("step_seconds", "steps", "even_from"), [(4.0, 3, 8), (0.1, 4, 20)])
def test_of_slow_steps_fewer_are_enough_to_be_warm_and_to_be_believed_alike(
    step_seconds: float, steps: int, even_from: int
) -> None:
    side: Any = Slow(step_seconds)
    ab_runs._warm_up(side, plan(600.0), None)
    assert len(side.seconds) == steps
    side.steps(even_from - steps - 1)
    assert period_of([side]) is None
    side.steps(1)
    assert period_of([side]) == 1


@pytest.mark.parametrize(("device", "known"), [("cpu", 6), ("cuda:0 NVIDIA H100", 0)])
def test_cpu_time_is_noted_beside_step_times_where_it_is_the_devices(
    device: str, known: int
) -> None:
    sides: list[Any] = [Counted({(8, 0)}, device), Counted({(8, 0)}, device)]
    result = ABRun()
    for turn in range(6):
        ab_runs._round(sides, 1, 3, result, flip=turn % 2 == 1, fresh=turn == 0, even=True)
    assert result.a_cpu_rounds == result.b_cpu_rounds == [0.5] * known
    assert (result.cpu_interval.low > 0.9) is bool(known)


def test_a_busy_machine_is_told_what_cpu_time_tells() -> None:
    """Step times leave it open; no row is kept for that."""

    def row(*names: str, cpu: float = 1.5) -> LedgerRow:
        added = [Applied(technique=name) for name in names]
        asked, noisy = (
            Asked.of(added, "", "add"),
            RatioInterval(ratio=1.2, low=0.4, high=3.0, rounds=6),
        )
        rounds = [cpu * (1 + 0.01 * n) for n in range(6)]
        seen = ABRun(
            interval=noisy,
            a_rounds=[1.0] * 6,
            b_rounds=[1.0] * 6,
            a_cpu_rounds=rounds,
            b_cpu_rounds=[1.0] * 6,
        )
        return measured(asked, seen, check_losses("bit-equal", [1.0] * 9, [1.0] * 9), 0.01)

    told = row("fused-optimizer", "bf16-autocast")
    assert not told.kept
    assert "doubt: 1.200× [0.400, 3.000]; in CPU time 1.5" in told.reason
    assert "CPU time" not in row("fused-optimizer", cpu=1.0).reason
    assert "CPU time" not in row("fused-optimizer", "thread-count").reason, "work moves"


@pytest.mark.slow
def test_steps_of_the_same_work_are_compared_from_where_each_stands(pool: Pool) -> None:
    pool.take(AS_IT_IS).steps(60)
    result = run_ab(pool, AS_IT_IS, FED, plan(2.0))
    sides = [pool.take(AS_IT_IS), pool.take(FED)]
    assert period_of(sides) == 1
    assert sides[0].index > sides[1].index
    assert result.rounds >= 1


@pytest.mark.slow
def test_a_technique_that_changes_nothing_ends_the_run_at_once(pool: Pool) -> None:
    nothing = Applied(technique="no-checkpointing")
    result = run_ab(pool, AS_IT_IS, Variant(command=SCRIPT, stack=(nothing,)), plan())
    assert result.had_no_effect
    assert result.interval.rounds == 0


@pytest.mark.parametrize("ended", [True, False])
def test_a_row_that_was_still_preparing_says_how_far_it_was(ended: bool) -> None:
    far = "5 of its inputs were recorded for int8's ranges"
    runtime = Variant(command=SCRIPT, stack=(Applied(technique="openvino"),))
    left = SimpleNamespace(
        ended=False, is_warm=True, was_looked_at=True, losses=[], applied={}, places={}, refused={},
        preparing={}, index=12, seconds=[],
    )  # fmt: skip
    live = SimpleNamespace(**{**vars(left), "ended": ended, "preparing": {"openvino": far}})
    stub: Any = SimpleNamespace(
        length=12,
        alive=lambda variant: None,
        take=lambda variant: live if variant is runtime else left,
        ended=lambda live: None,
    )
    result = run_ab(stub, AS_IT_IS, runtime, plan())
    assert result.had_no_effect != ended
    asked = Asked(technique="openvino", stage="add")
    row = measured(asked, result, check_losses("rounding", [], []), 0.01)
    said = row.reason if ended else result.refusal
    assert far in said
    assert ("the script ended after 12 steps, when" if ended else "give more with --budget") in said


@pytest.mark.slow
def test_a_script_against_itself_is_no_gain(pool: Pool) -> None:
    result = run_ab(pool, AS_IT_IS, Variant(command=SCRIPT, cwd=SCRIPTS), plan(5.0))
    assert result.interval.low < 1.05
    assert result.interval.high > 0.95
    assert result.a_losses[:12] == result.b_losses[:12]


@pytest.mark.slow
def test_a_device_that_holds_one_copy_is_measured_one_run_at_a_time(pool: Pool) -> None:
    pool.room = 1
    result = run_ab(pool, AS_IT_IS, FED, plan(3.0, resident=False))
    assert result.interval.rounds >= 1
    assert result.interval.ratio > 1.2


def test_the_side_that_fails_is_named(tmp_path: Path, pool: Pool) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import torch\nraise RuntimeError('no luck')\n")
    with pytest.raises(VariantFailed, match="no luck") as failure:
        run_ab(pool, AS_IT_IS, Variant(command=[str(script)]), plan())
    assert failure.value.side == "b"


@pytest.mark.slow
def test_a_killed_side_is_named_with_its_signal(
    monkeypatch: pytest.MonkeyPatch, pool: Pool
) -> None:
    fought = ab_runs._round

    def kill_b(sides: list[Live], *args: object, **kwargs: object) -> bool:
        os.kill(sides[1].hellos[0].pid, signal.SIGKILL)
        return fought(sides, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ab_runs, "_round", kill_b)
    with pytest.raises(VariantFailed, match="SIGKILL") as failure:
        run_ab(pool, AS_IT_IS, FED, plan())
    assert failure.value.side == "b"


def test_a_gain_is_decided_once_its_interval_is_as_narrow_as_asked() -> None:
    wide = RatioInterval(ratio=2.5, low=1.3, high=5.0, rounds=3)
    narrow = RatioInterval(ratio=2.5, low=2.3, high=2.7, rounds=12)
    loss = RatioInterval(ratio=0.5, low=0.2, high=0.9, rounds=3)
    headline = ABPlan(threshold=0.01, seconds=1.0, within=1.25)
    assert not headline.is_decided(wide)
    assert headline.is_decided(narrow)
    assert headline.is_decided(loss), "how much slower is no matter"
    assert ABPlan(threshold=0.01, seconds=1.0).is_decided(wide)


class Wavering(Counted):
    """A side whose steps waver by a quarter, on a clock that they alone move on."""

    def __init__(self, clock: list[float], step_seconds: float) -> None:
        super().__init__({(8, 0)})
        self.clock = clock
        self.step_seconds = step_seconds
        self.start_seconds = 40.0

    def steps(self, count: int) -> None:
        for _ in range(count):
            wavers = 1.0 + 0.25 * ((7 * self.index) % 5 - 2)
            self.seconds.append(self.step_seconds * wavers)
            self.clock[0] += self.seconds[-1]
        self.cpu_seconds += count


@pytest.mark.parametrize(("faster", "goes_on"), [(2.0, True), (1.0, False)])
def test_rounds_that_look_like_a_gain_go_on_for_as_long_as_a_start_takes(
    faster: float, goes_on: bool, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    for module in (ab_plan, ab_runs):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    sides = {"a": Wavering(clock, 2.0), "b": Wavering(clock, 2.0 / faster)}
    sides["b"].seconds = [1.0]
    monkeypatch.setattr(ab_runs, "_ready", lambda pool, name, variant, plan: sides[name])
    monkeypatch.setattr(ab_runs, "_aligned", lambda pool, sides, plan, period: sides)
    result = ABRun()
    ab_runs._side_by_side(pool, AS_IT_IS, AS_IT_IS, plan(12.0), result)
    assert (clock[0] > 20.0) is goes_on
    assert (result.interval.low > 1.01) is goes_on


def test_rounds_that_have_begun_are_not_cut_off_for_what_others_need(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    for module in (ab_plan, ab_runs):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    sides = {"a": Wavering(clock, 2.0), "b": Wavering(clock, 1.0)}
    monkeypatch.setattr(ab_runs, "_ready", lambda pool, name, variant, plan: sides[name])
    pool.deadline = 7.0
    limits = ABPlan(threshold=0.01, seconds=12.0, deadline=100.0)
    monkeypatch.setattr(
        ab_runs, "_run", lambda live, name, steps: live.steps(steps) if pool.deadline > 7.0 else 1
    )
    result = run_ab(pool, AS_IT_IS, AS_IT_IS, limits)
    assert clock[0] > 7.0
    assert result.rounds >= 3


def test_no_round_is_run_that_no_look_would_count(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    for module in (ab_plan, ab_runs):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    sides = {"a": Wavering(clock, 2.0), "b": Wavering(clock, 2.0)}
    monkeypatch.setattr(ab_runs, "_ready", lambda pool, name, variant, plan: sides[name])
    result = run_ab(pool, AS_IT_IS, AS_IT_IS, plan(30.0))  # 7 rounds of four seconds
    assert result.rounds == 5, "the next look is after 8"
    assert clock[0] < 25.0


def test_an_undecided_run_goes_on_with_its_rounds(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"a": Wavering([0.0], 0.6), "b": Wavering([0.0], 0.55)}
    monkeypatch.setattr(ab_runs, "_ready", lambda pool, name, variant, plan: sides[name])
    begun = ABRun(a_rounds=[2.0, 1.0], b_rounds=[1.0, 1.0])
    result = run_ab(pool, AS_IT_IS, AS_IT_IS, plan(0.0), begun)
    assert result.rounds == 2, "no time was given"
    result = run_ab(pool, AS_IT_IS, AS_IT_IS, plan(1.0), begun)
    assert result.rounds in LOOKS
    assert result.a_rounds[:2] == [2.0, 1.0]


class Playing(Counted):
    """An agent that plays for nine seconds before each of its cycles of learning."""

    def __init__(self, learning_seconds: float, cycle: int) -> None:
        super().__init__({(8, 0)})
        self.learning_seconds = learning_seconds
        self.cycle = cycle
        self.evaluated = True

    def steps(self, count: int) -> None:
        for _ in range(count):
            plays = self.index % self.cycle == 0
            self.seconds.append((9.0 if plays else 0.0) + self.learning_seconds)
        self.cpu_seconds += count


@pytest.mark.parametrize(("cycle", "known"), [(5, 0), (40, 40)])
def test_the_ratio_of_a_run_that_plays_and_learns_counts_both(
    cycle: int, known: int, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"a": Playing(0.1, cycle), "b": Playing(0.05, cycle)}
    pool.cycle = StepCycle(known, 0.5) if known else None
    monkeypatch.setattr(ab_runs, "_ready", lambda pool, name, variant, plan: sides[name])
    result = ABRun()
    ab_runs._side_by_side(pool, AS_IT_IS, AS_IT_IS, plan(1e4), result)
    of_the_run = (9 + 0.1 * cycle) / (9 + 0.05 * cycle)
    assert result.interval.ratio == pytest.approx(of_the_run, rel=0.02)
    assert result.interval.low > 1.0


def test_long_steps_that_there_is_no_time_for_are_counted_as_unchanged(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {"a": Playing(0.1, 40), "b": Playing(0.05, 40)}
    pool.cycle = StepCycle(40, 9 / 13)
    monkeypatch.setattr(ab_runs, "_ready", lambda pool, name, variant, plan: sides[name])
    monkeypatch.setattr(ab_runs, "_whole_cycles", lambda *_: 0)
    result = ABRun()
    ab_runs._side_by_side(pool, AS_IT_IS, AS_IT_IS, plan(1e4), result)
    assert result.interval.ratio == pytest.approx(13 / 11, rel=0.01)
    assert result.a_rounds[-1] == pytest.approx(13 / 40)
