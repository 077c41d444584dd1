"""`ridgeline queue simulate --placement RULE` places as `queue place` does under the same rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.detailed_pool import DetailedHeld
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.machine import ClusterState
from ridgeline.queue.placement.answer import fill_cluster
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import PlacedNode, TaskKind, tasks_of
from ridgeline.queue.placement.rules import rule_names
from ridgeline.queue.policies import policy_names
from ridgeline.queue.pools import counted_jobs
from ridgeline.queue.ruled_pool import RuledPool
from ridgeline.queue.shares import QueueShare
from ridgeline.queue.simulate import play_queue
from ridgeline.queue.wants import JobWants
from ridgeline.records.queue_simulation import QueueSimulation

GIBIBYTE = 2**30
CLUSTER = QueuedCluster(
    nodes=[
        NodeGroup(count=2, gpus=8, gpu_type="h100", cpus=32, memory_gibibytes=96),
        NodeGroup(count=3, gpus=4, gpu_type="a100", cpus=12, memory_gibibytes=64),
    ],
    queues={"a": QueueShare(weight=2.0, quota=12), "b": QueueShare(quota=8)},
    restart_seconds=3.0,
    checkpoint_seconds=7.0,
    las_gpu_seconds=40.0,
)
WANTS = st.builds(
    JobWants,
    cpus=st.sampled_from([0.0, 1.0, 2.5, 7.0]),
    memory_bytes=st.sampled_from([0.0, 5e9]),
    gpu_type=st.sampled_from(["", "", "h100", "a100", "a100|h100"]),
    level=st.sampled_from(["node", "node", "rack"]),
    required=st.booleans(),
)
ROWS = st.tuples(
    st.integers(0, 40), st.integers(1, 60), st.sampled_from([0.25, 0.4, 0.5, 1, 1, 2, 3, 4]),
    WANTS, st.sampled_from("ab"), st.integers(0, 2),
)  # fmt: skip
LARGE = st.tuples(
    st.integers(0, 40), st.integers(1, 60), st.sampled_from([8, 11, 16]), st.just(JobWants()),
    st.sampled_from("ab"), st.integers(0, 2),
)  # fmt: skip


class Ledger:
    """Thousandths of every GPU that jobs hold, by node and number."""

    def __init__(self) -> None:
        self.taken: Counter[tuple[int, int]] = Counter()

    def change(self, held: DetailedHeld, sign: int) -> None:
        """Count what is held, or no longer; no GPU has more than it is."""
        for node, placed in held:
            assert len(set(placed.on)) == (1 if placed.piece.milli else placed.piece.gpus)
            for gpu in placed.on:
                self.taken[node, gpu] += sign * (placed.piece.milli or 1000)
                assert 0 <= self.taken[node, gpu] <= 1000

    def check(self, pool: RuledPool) -> None:
        """Rooms and the rule see what is held, and nothing else."""
        for node, room in enumerate(pool.rooms):
            taken = {gpu: milli for (place, gpu), milli in self.taken.items()
                     if place == node and milli}  # fmt: skip
            assert room.whole == pool.sizes[node] - len(taken)
            assert room.cpu_milli >= 0
            assert room.memory_bytes >= 0
            left = pool._nodes.gpu_left[pool._place_of[node]]
            assert left[: pool.sizes[node]].tolist() == [
                1000 - taken.get(gpu, 0) for gpu in range(pool.sizes[node])
            ]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("rule", rule_names())
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(ROWS | LARGE, min_size=1, max_size=25),
    policy=st.sampled_from(policy_names()),
    seed=st.integers(0, 3),
)
def test_no_gpu_is_given_twice_gangs_are_whole_and_every_job_ends(
    rule: str, rows: list[tuple[int, int, float, JobWants, str, int]], policy: str, seed: int
) -> None:
    cluster = msgspec.structs.replace(CLUSTER, placement=rule)
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[row[0] for row in rows],
        duration_seconds=[row[1] for row in rows],
        num_gpus=[row[2] for row in rows],
        queues=[row[4] for row in rows],
        priority=[row[5] for row in rows],
        wants=[row[3] for row in rows],
    )
    ledger = Ledger()
    start, take, give = ClusterState.start_holding, RuledPool.take, RuledPool.give

    def started(state: ClusterState, job: int, held: DetailedHeld) -> None:
        assert sum(placed.gpus for _, placed in held) == pytest.approx(jobs.num_gpus[job])
        start(state, job, held)

    def taken(pool: RuledPool, wish: object) -> DetailedHeld:
        held = take(pool, wish)  # type: ignore[arg-type]
        ledger.change(held, 1)
        ledger.check(pool)
        return held

    def given_back(pool: RuledPool, held: DetailedHeld) -> None:
        give(pool, held)
        ledger.change(held, -1)
        ledger.check(pool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterState, "start_holding", started)
        patch.setattr(RuledPool, "take", taken)
        patch.setattr(RuledPool, "give", given_back)
        played = play_queue(jobs, cluster, policy, seed=seed)
    ended = np.isfinite(played.end_seconds)
    if policy == "pod-by-pod":  # whose jobs can wait for each other for good
        assert (played.waiting[-1] == 0) == ended.all()
    else:
        assert ended.all()
        assert not any(ledger.taken.values())
        assert played.busy_gpus[-1] == played.waiting[-1] == 0


ASKED = ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb", "0.3", "0.5", "1", "2"]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("rule", rule_names())
@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 60), st.sampled_from(ASKED)),
        min_size=1,
        max_size=40,
    ),
    policy=st.sampled_from(["fifo", "fifo-skip", "easy", "srtf", "fair"]),
)
def test_a_gpu_that_a_rule_splits_has_no_slot_twice_and_is_not_shared_otherwise(
    rule: str, rows: list[tuple[int, int, str]], policy: str
) -> None:
    cluster = QueuedCluster(nodes=[NodeGroup(count=2, gpus=2, gpu_type="h100")], placement=rule)
    jobs = counted_jobs(
        jobs_in_order(
            names=[str(place) for place in range(len(rows))],
            submit_seconds=[row[0] for row in rows],
            duration_seconds=[row[1] for row in rows],
            num_gpus=[1.0 if "g" in row[2] else float(row[2]) for row in rows],
            wants=[JobWants(gpu_slice=row[2] if "g" in row[2] else "") for row in rows],
        ),
        cluster,
    )
    there: Counter[tuple[int, int, str]] = Counter()
    take, give = RuledPool.take, RuledPool.give

    def change(held: DetailedHeld, sign: int) -> None:
        for node, placed in held:
            piece = placed.piece
            for gpu in placed.on:
                slots = [f"slot {bit}" for bit in range(8) if placed.slots >> bit & 1]
                for part in slots or ["share"] * piece.milli or ["whole"]:
                    there[node, gpu, part] += sign
        for node, gpu in {key[:2] for key, count in there.items() if count}:
            used = {key[2]: n for key, n in there.items() if key[:2] == (node, gpu) and n}
            assert used.pop("share", 0) <= (0 if used else 1000)
            assert set(used.values()) <= {1}
            assert "whole" not in used or len(used) == 1

    def taken(pool: RuledPool, wish: object) -> DetailedHeld:
        held = take(pool, wish)  # type: ignore[arg-type]
        change(held, 1)
        return held

    def given_back(pool: RuledPool, held: DetailedHeld) -> None:
        give(pool, held)
        change(held, -1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuledPool, "take", taken)
        patch.setattr(RuledPool, "give", given_back)
        played = play_queue(jobs, cluster, policy)
    assert np.isfinite(played.end_seconds).all()
    assert not any(there.values())


def test_instances_of_mig_are_placed_by_a_rule_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = "".join(f"{place},0,60,1,1g.10gb\n" for place in range(14))
    (tmp_path / "jobs.csv").write_text(
        f"name,submit_seconds,duration_seconds,num_gpus,gpu_slice\n{rows}"
    )
    (tmp_path / "cluster.toml").write_text('[[nodes]]\ncount = 2\ngpus = 1\ngpu_type = "h100"\n')
    words = [str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.toml")]
    found = simulated(capsys, *words, "--placement", "packing", "--policy", "fifo")
    assert found.policies[0].mean_wait_seconds == 0.0  # seven fit on each of two GPUs


def test_nodes_that_fail_are_passed_over_and_every_job_ends() -> None:
    jobs = jobs_in_order(
        names=[str(place) for place in range(60)],
        submit_seconds=[60.0 * place for place in range(60)],
        duration_seconds=[4000.0] * 60,
        num_gpus=[(0.5, 1, 4, 2)[place % 4] for place in range(60)],
    )
    for rule in rule_names():
        cluster = msgspec.structs.replace(
            CLUSTER, placement=rule, node_mtbf_hours=2.0, node_repair_hours=0.2
        )
        played = play_queue(jobs, cluster, "fifo-skip", seed=1)
        assert np.isfinite(played.end_seconds).all()
        assert played.interruptions.sum() > 0


KINDS = [
    TaskKind(4_000, 1000, 1, 8 * GIBIBYTE),
    TaskKind(6_000, 460, 1, 12 * GIBIBYTE),
    TaskKind(2_000, 200, 1, 4 * GIBIBYTE),
    TaskKind(8_000, 750, 1, 16 * GIBIBYTE, ("T4",)),
    TaskKind(16_000, 1000, 2, 32 * GIBIBYTE, ("G2", "V100")),
    TaskKind(32_000, 1000, 4, 64 * GIBIBYTE),
    TaskKind(64_000, 1000, 8, 128 * GIBIBYTE),
]
"""What tasks of openb ask for: a few kinds, most of them parts of a GPU."""


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("rule", rule_names())
def test_jobs_that_never_end_lie_where_queue_place_puts_them(rule: str, seed: int) -> None:
    groups = [
        NodeGroup(count=40, gpus=gpus, gpu_type=model, cpus=cpus, memory_gibibytes=memory)
        for gpus, model, cpus, memory in ((2, "T4", 48, 192), (8, "V100", 96, 384),
                                          (4, "G2", 64, 256))
    ]  # fmt: skip
    nodes = [
        PlacedNode(name=str(number), cpu_milli=round(1000 * one.cpus),
                   memory_bytes=round(one.memory_gibibytes * GIBIBYTE), num_gpus=one.gpus,
                   model=one.gpu_type)
        for number, one in enumerate(group for group in groups for _ in range(group.count))
    ]  # fmt: skip
    draw = np.random.default_rng(seed)
    shares = [0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05]
    kinds = [KINDS[place] for place in draw.choice(len(KINDS), 450, p=shares)]
    tasks = tasks_of(kinds)
    filled = fill_cluster(nodes, tasks, rule, typical=TypicalTasks(tasks), stops=[], seed=seed)
    expected = {
        str(task): int(filled.nodes.names[node])
        for task, node in enumerate(filled.node_of) if node >= 0
    }  # fmt: skip
    jobs = jobs_in_order(
        names=[str(task) for task in range(len(kinds))],
        submit_seconds=list(range(len(kinds))),
        duration_seconds=[1e9] * len(kinds),
        num_gpus=[kind.total_milli / 1000 for kind in kinds],
        wants=[
            JobWants(cpus=kind.cpu_milli / 1000, memory_bytes=kind.memory_bytes,
                     gpu_type="|".join(kind.models))
            for kind in kinds
        ],
    )  # fmt: skip
    found: dict[str, int] = {}
    start = ClusterState.start_holding

    def started(state: ClusterState, job: int, held: DetailedHeld) -> None:
        if state.now < 1e9:
            ((found[jobs.names[job]], _),) = held
        start(state, job, held)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterState, "start_holding", started)
        cluster = QueuedCluster(nodes=groups, placement=rule)
        play_queue(jobs, cluster, "fifo-skip", seed=seed)
    assert found == expected
    assert 0.6 < len(expected) / len(kinds) < 1.0


JOBS = "name,submit_seconds,duration_seconds,num_gpus\n" + "".join(
    f"{place},{place},{300 + 97 * place % 500},{(0.25, 1, 0.5, 2)[place % 4]}\n"
    for place in range(60)
)


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> QueueSimulation:
    assert main.run(["queue", "simulate", *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)


def test_the_option_overrides_the_file_and_the_seed_draws_what_is_left_to_chance(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.toml").write_text(
        'placement = "packing"\n[[nodes]]\ncount = 12\ngpus = 4\n'
    )
    words = [str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.toml")]
    filed = simulated(capsys, *words)
    assert filed.placement == "packing"
    one, same, other = (
        simulated(capsys, *words, "--placement", "random", "--seed", seed) for seed in "112"
    )
    assert one.placement == "random"
    assert one == same
    fragmented = [found.policies[0].fragmented_share for found in (filed, one, other)]
    assert len(set(fragmented)) == 3
    assert fragmented[0] == min(fragmented)


@pytest.mark.parametrize(
    ("nodes", "row", "words", "says"),
    [
        ("cpus = 8\n", "1", "--placement tetris",
         "placement tetris: known are pack, spread, best-fit, clustering, dot-product, fgd,"),
        ("cpus = 8\n[[nodes]]\ncount = 1\ngpus = 4\n", "1", "--placement fgd",
         "placement fgd compares nodes by cpus, which some of them do not say; give it for all"),
    ],
)  # fmt: skip
def test_what_a_rule_cannot_hold_for_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nodes: str, row: str, words: str, says: str
) -> None:
    head = "name,submit_seconds,duration_seconds,num_gpus"
    (tmp_path / "jobs.csv").write_text(f"{head}\na,0,60,{row}\n")
    (tmp_path / "cluster.toml").write_text(f"[[nodes]]\ncount = 2\ngpus = 4\n{nodes}")
    files = [str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.toml")]
    assert main.run(["queue", "simulate", *files, *words.split()]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("ridgeline: --placement: ")
    assert said.count("\n") == 1


def test_a_rule_needs_nodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    words = [str(tmp_path / "jobs.csv"), "--gpus", "48", "--placement", "fgd"]
    assert main.run(["queue", "simulate", *words]) == 2
    assert "placement fgd chooses among nodes; give some by --cluster" in capsys.readouterr().err
