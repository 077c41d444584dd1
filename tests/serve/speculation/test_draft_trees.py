"""Trees of guesses in the engine: whichever branch is right, answers are those without guesses."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.serve.speculation.test_speculative_answers import LIBRARY, PROMPTS
from transformers import AutoTokenizer

from ridgeline.batching.sequence import Sequence
from ridgeline.cli.main import run
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.speculation.drafter import Proposal
from ridgeline.serve.speculation.heads import DraftHeads, HeadFacts

PROMPT_TOKENS = [tuple(AutoTokenizer.from_pretrained(LIBRARY).encode(one)) for one in PROMPTS]


class Oracle:
    """Guesses trees around the right answers, whose tokens stand anywhere in them."""

    needs_hidden = False

    def __init__(self, answers: dict[str, tuple[int, ...]]) -> None:
        self._answers = answers
        self._random = Random(5)

    def propose(self, sequences: list[Sequence], states: Any, hidden: Any) -> list[Proposal]:
        return [self._tree(one) for one in sequences]

    def _tree(self, sequence: Sequence) -> Proposal:
        answer = self._answers[sequence.request.id][sequence.num_generated :]
        tokens: list[int] = []
        parents: list[int] = []
        level = right = -1
        for depth in range(min(4, len(answer))):
            candidates = [answer[depth], *self._random.sample(range(2048), 2)]
            self._random.shuffle(candidates)
            first = len(tokens)
            for parent in {right, level}:
                tokens += candidates
                parents += [parent] * 3
            if self._random.random() < 0.2:
                break  # from here on, nothing is right
            at = [place for place in range(first, len(tokens)) if parents[place] == right]
            right = next(place for place in at if tokens[place] == answer[depth])
            level = first + self._random.randrange(3)
        return Proposal(tuple(tokens), parents=tuple(parents))

    def forget(self, sequence: Sequence) -> None:
        pass

    def memory(self) -> list[Any]:
        return []


def answers(oracle: Oracle | None, **given: Any) -> tuple[dict[str, tuple[int, ...]], Any]:
    config = EngineConfig(
        model=LIBRARY, device="cpu", dtype="fp32", threads=1, max_length=160, max_sequences=8,
        kv_bytes=2**24, speculation=SpeculationConfig(kind="ngram", always=True), debug=True,
        **given,
    )  # fmt: skip
    engine = ServingEngine(config)
    assert engine._speculating is not None
    if oracle is not None:
        engine._speculating.drafter = oracle
    else:
        engine._speculating = engine._outcomes._speculating = None
    for at, prompt in enumerate(PROMPT_TOKENS):
        chance = {"temperature": 0.0} if at else {"temperature": 0.8, "seed": 3}
        sampling = Sampling(max_tokens=60, **chance)
        engine.handle(Submit(id=str(at), prompt=prompt, sampling=sampling))
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta)
            found[message.id] = found.get(message.id, ()) + message.tokens
    assert engine.scheduler.cache.usage == 0.0
    return found, engine.stats()


@pytest.mark.sweep("given0")
@pytest.mark.parametrize(
    "given",
    [{"block_size": 4}, {"kv_layout": "contiguous"}, {"packed_cache": False, "kv_dtype": "int8"}],
)
def test_answers_are_those_without_guesses_and_blocks_come_back(given: dict[str, Any]) -> None:
    wanted, plain = answers(None, **given)
    found, stats = answers(Oracle(wanted), **given)
    assert found == wanted
    assert stats.accepted_tokens > 1.5 * stats.draft_rounds
    assert stats.steps < 0.6 * plain.steps


def test_a_model_called_layer_by_layer_takes_trees_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgeline.serve.model import load

    def refuse(*_: Any, **__: Any) -> None:
        raise load.NotInOne("asked for by a test")

    wanted, _ = answers(None)
    monkeypatch.setattr(load, "direct", refuse)
    assert answers(Oracle(wanted))[0] == wanted


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """As they are before training: each head says what the model's own says."""
    ranks = ((0.4, 0.2, 0.1), (0.2, 0.1, 0.0))
    facts = HeadFacts(model="m", hidden=128, vocab=2048, num_heads=2, held_out_ranks=ranks)
    DraftHeads(facts).save(tmp_path / "heads")
    return tmp_path / "heads"


def test_the_command_says_how_long_a_round_is(
    heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", LIBRARY, "--prompt", "import", "--max-tokens", "8", "--temperature", "0"]
    asked += ["--device", "cpu", "--dtype", "fp32", "--json"]
    assert run(asked) == 0
    wanted = json.loads(capsys.readouterr().out)
    assert (
        run([*asked, "--speculative", f"heads:{heads}", "--num-drafts", "2", "--draft-tree", "5"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["answers"][0]["tokens"] == wanted["answers"][0]["tokens"]
    assert wanted["draft_rounds"] == 0
    ledger = {row["what"]: row["note"] for row in found["memory"]}
    assert ledger["draft heads"] == "a tree of 5 guesses, 2 deep"


def test_a_tree_that_cannot_be_is_refused_in_one_line(
    heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", LIBRARY, "--prompt", "import", "--device", "cpu", "--draft-tree"]
    with_heads = ["--num-drafts", "2", "--speculative", f"heads:{heads}"]
    facts = json.loads((heads / "heads.json").read_text())
    for words, ranks, told in (
        (["5"], ((0.5,),), "--draft-tree 5 needs --speculative heads:FOLDER"),
        (["64", *with_heads], ((0.5,),), "a tree has 1 to 63 guesses"),
        (["5", *with_heads], ((0.9, 0.8),), "add up to at most 1"),
        (["5", *with_heads], (), "train them again with: ridgeline draft-heads"),
    ):
        (heads / "heads.json").write_text(json.dumps({**facts, "held_out_ranks": ranks}))
        assert run([*asked, *words]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
