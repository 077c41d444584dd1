"""`ridgeline techniques`: every card, one in full, and what was gained where it was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.records import technique_card
from ridgeline.techniques import all_techniques

PROGRAM = [sys.executable, "-m", "ridgeline.cli.main"]
CARDS = {name: module.CARD for name, module in all_techniques().items()}


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "techniques", *words], capture_output=True, text=True, check=False
    )


def test_every_card_is_listed_with_all_that_it_says() -> None:
    done = asked("--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["record"] == "techniques"
    listed = {card["name"]: card for card in document["techniques"]}
    assert set(listed) == set(CARDS)
    for name, card in CARDS.items():
        shown = listed[name]
        assert shown["title"] == card.title
        assert shown["cures"] == list(card.cures)
        assert (shown["costs"], shown["equivalence"]) == (card.costs, card.equivalence)
        assert shown["equivalence_with"] == dict(card.equivalence_with)
        assert (shown["source"], shown["slot"]) == (card.source, card.slot)
        assert shown["about"]


def test_a_person_sees_name_cures_costs_equivalence_source_and_slot() -> None:
    text = " ".join(asked().stdout.split())
    for card in CARDS.values():
        for said in (card.name, card.title, card.equivalence, card.source, card.costs, *card.cures):
            assert " ".join(said.split()) in text
    assert "slot autocast" in text


@pytest.mark.slow
def test_one_card_is_shown_in_full_with_those_that_it_excludes() -> None:
    done = asked("compile")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "The module's call is replaced, not the module" in text
    assert "shares with cuda-graphs" in text
    assert "mode (str)" in text
    assert "ridgeline tune --only compile" in text


@pytest.mark.slow
def test_an_option_that_loosens_the_equivalence_is_shown() -> None:
    shown = " ".join(asked("fused-attention").stdout.split())
    assert "with dropout statistical: losses differ no more than between two seeds" in shown
    assert "or statistical with dropout" in " ".join(asked().stdout.split())


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    ("name", "near"),
    [("compil", "compile"), ("bf16", "bf16-autocast"), ("fused_optimiser", "fused-optimizer")],
)
def test_an_unknown_name_is_told_the_nearest(name: str, near: str) -> None:
    done = asked(name)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"ridgeline: no technique '{name}'; did you mean ")
    assert near in done.stderr


@pytest.mark.slow
def test_a_name_like_no_other_is_told_where_the_names_stand() -> None:
    done = asked("qqq")
    assert done.returncode == 2
    assert "`ridgeline techniques` lists them" in done.stderr


def test_listing_the_cards_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\nfrom ridgeline.cli.main import run\n"
        "assert run(['techniques']) == 0\nassert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


GAINS = """
measured_on = "a CPU, torch 2.13.0, 2026-11-22"
command = "ridgeline tune --budget 3m"
""" + "".join(
    f'[[gain]]\ntechnique = "{name}"\nscript = "{script}"\nmultiplier = {times}\n'
    f"ci_low = {times - 0.1}\nci_high = {times + 0.1}\nkept = {str(times > 1).lower()}\n"
    for name, script, times in (
        ("compile", "nanogpt", 1.4),
        ("compile", "mingpt-adder", 1.6),
        ("compile", "pygat", 0.7),
    )
)


def test_measured_gains_stand_beside_the_card_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gains.toml"
    path.write_text(GAINS)
    monkeypatch.setattr(technique_card, "GAINS", path)
    assert run(["techniques"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert "gained 1.50× in the median of 2 of 3 scripts" in listed
    assert listed.count("gained ") == 1, "what nobody measured claims nothing"
    assert run(["techniques", "compile"]) == 0
    shown = capsys.readouterr().out
    assert "nanogpt" in shown
    assert "a CPU, torch 2.13.0, 2026-11-22: ridgeline tune --budget 3m" in " ".join(shown.split())


def test_without_measurements_no_gain_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(technique_card, "GAINS", tmp_path / "absent.toml")
    assert run(["techniques", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured_on"] is None
    assert not any(card["measured"] for card in document["techniques"])


def test_gains_that_are_part_of_this_version_are_of_known_techniques() -> None:
    found = technique_card.measured_gains()
    assert found is None or {row.technique for row in found.gain} <= set(CARDS)
