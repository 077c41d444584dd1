"""Full disks and changed files: the run goes on, and from nothing that is not whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint.recipes import small_run
from tests.train.checkpoint.resume_worker import Outcome
from tests.train.processes import RankFailed, run_ranks

from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import write_recipe
from ridgeline.records.training_run import read_log
from ridgeline.train.checkpoint.store import Store

pytestmark = pytest.mark.multiprocess
_WORKER = "tests.train.checkpoint.resume_worker"


def _go_on(folder: Path, ranks: int = 1, **tables: Any) -> Outcome:
    cases = {"case": small_run(folder, **tables)}
    found = run_ranks(ranks, f"{_WORKER}:chained", {"cases": cases, "folder": str(folder)})
    outcome: Outcome = found[0]["case"]
    return outcome


@pytest.mark.slow
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    argument = {
        "recipe": small_run(
            tmp_path,
            layout={"dp": 2},
            run={"steps": 8},
            checkpoint={"every_steps": 2},
        ),
        "folder": str(tmp_path),
        "full": (3, 5),
        "rank": 1,
        "bytes": 20_000,
    }
    (outcome, seen), _ = run_ranks(2, f"{_WORKER}:with_a_full_disk", argument)
    assert len(outcome.losses) == 8
    (note,) = outcome.notes
    assert "checkpoint of step 4 was not written: File too large" in note
    assert "that of step 2 stays" in note
    assert seen[4] == [2]  # the last good one was there all the time
    assert [one.step for one in Store(tmp_path / "run").whole()] == [8, 6]
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_a_corrupted_shard_is_named_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    _go_on(tmp_path, checkpoint={"every_steps": 3})
    store = Store(tmp_path / "case" / "run")
    newest = store.whole()[0]
    assert newest.step == 6
    (shard,) = newest.path.glob("*.distcp")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    outcome = _go_on(tmp_path, run={"steps": 7})
    assert outcome.began == 3
    assert f"{shard}: its checksum is not the one written" in outcome.notes[0]
    assert "step 3 is used instead" in outcome.notes[0]
    assert [one.step for one in store.whole()] == [7, 3]
    assert (store.folder / "damaged-00000006").exists()


@pytest.mark.slow
def test_with_nothing_but_damaged_checkpoints_the_run_does_not_begin_anew(tmp_path: Path) -> None:
    _go_on(tmp_path)
    (found,) = Store(tmp_path / "case" / "run").whole()
    (found.path / "manifest.json").write_text("{")
    with pytest.raises(RankFailed, match=r"no checkpoint is good: .*manifest\.json.*--fresh"):
        _go_on(tmp_path, run={"steps": 7})


def _on_a_disk_of(size: str, tmp_path: Path, steps: int) -> subprocess.CompletedProcess[str]:
    """Tokens, log and checkpoints on one small tmpfs, in a mount namespace of its own."""
    recipe: Recipe = small_run(
        tmp_path, run={"steps": steps}, checkpoint={"every_steps": 2, "keep": 100}
    )
    write_recipe(tmp_path / "recipe.toml", recipe)
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = (
        f"mount -t tmpfs -o size={size} none {disk} || exit 77\n"
        f"{sys.executable} -m ridgeline.cli.main train recipe.toml --out {disk}/run; code=$?\n"
        f"mkdir {kept}; cp {disk}/run/*.jsonl {kept}\n"
        f"ls {disk}/run/checkpoints > {kept}/names 2> /dev/null\n"
        f"find {disk} -name '*.tmp' > {kept}/unfinished\n"
        "exit $code"
    )
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    return done


def _events(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "kept/events.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_on_a_disk_that_is_really_full_ends_well(tmp_path: Path) -> None:
    done = _on_a_disk_of("4m", tmp_path, steps=12)
    notes = [one["note"] for one in _events(tmp_path) if "No space left" in one.get("note", "")]
    assert notes, done.stderr
    assert (tmp_path / "kept/names").read_text().split()
    assert [line.step for line in read_log(tmp_path / "kept")] == list(range(1, 13))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["48k", "300k"])
def test_a_disk_without_room_for_tokens_or_model_ends_the_run_in_one_line(
    tmp_path: Path, size: str
) -> None:
    """It does not start again, as after a crash: there would be no more room."""
    done = _on_a_disk_of(size, tmp_path, steps=4)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ridgeline: ")
    assert "No space left" in last
    assert "make room, and the same command goes on" in last
    assert [one["kind"] for one in _events(tmp_path)].count("started") == 1
    assert not (tmp_path / "kept/unfinished").read_text()


CHAIN: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "two, one, three ranks of zero 3": [
        (2, {"layout": {"dp": 2, "fsdp": 2, "zero": 3}}),
        (1, {}),
        (3, {"layout": {"dp": 3, "fsdp": 3, "zero": 3}}),
    ],
    "ddp to zero 3": [(2, {"layout": {"dp": 2}}), (2, {"layout": {"dp": 2, "fsdp": 2, "zero": 3}})],
    "zero 3 to tensor parallel": [
        (2, {"layout": {"dp": 2, "fsdp": 2, "zero": 3}}),
        (2, {"layout": {"tp": 2}}),
    ],
    "pipeline to one and back": [
        (2, {"layout": {"pp": 2}}),
        (1, {}),
        (2, {"layout": {"pp": 2}}),
    ],
}


@pytest.mark.slow
def test_a_checkpoint_is_cut_anew_for_other_ranks_and_layouts(tmp_path: Path) -> None:
    """Each link of a chain trains two steps more; one process that was never stopped agrees."""
    chains = {name: tmp_path / str(number) for number, name in enumerate(CHAIN)}
    even = {"schedule": "constant", "final_learning_rate": 3e-3, "warmup_steps": 0}

    def case(layout: dict[str, Any], steps: int) -> Recipe:
        return small_run(
            tmp_path,
            "llama-tied",
            layout=layout | {"global_batch": 6},
            optimizer=even,
            run={"steps": steps},
        )

    straight = case({}, 6)
    argument = {"cases": {"straight": straight}, "folder": str(tmp_path)}
    expected: Outcome = run_ranks(1, f"{_WORKER}:chained", argument)[0]["straight"]
    for link in range(3):
        for ranks in (1, 2, 3):
            cases = {}
            for name, folder in chains.items():
                if link < len(CHAIN[name]) and CHAIN[name][link][0] == ranks:
                    layout = CHAIN[name][link][1].get("layout", {})
                    cases[folder.name] = case(layout, 2 * link + 2)
            if not cases:
                continue
            argument = {"cases": cases, "folder": str(tmp_path)}
            for of_rank in run_ranks(ranks, f"{_WORKER}:chained", argument):
                for outcome in of_rank.values():
                    assert outcome.began == 2 * link
                    losses = expected.losses[2 * link : 2 * link + 2]
                    assert outcome.losses == pytest.approx(losses, rel=2e-3)
                    if link == 2:
                        for name, weight in outcome.weights.items():
                            torch.testing.assert_close(
                                weight, expected.weights[name], rtol=1e-2, atol=2e-3
                            )
