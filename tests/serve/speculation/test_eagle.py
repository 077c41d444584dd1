"""EAGLE heads through the command: trained, used, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.speculation.test_draft_trees import LIBRARY, PROMPT_TOKENS
from tests.serve.speculation.test_drafters import TEXT

from ridgeline.cli.main import run
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.speculation.published_eagle import read_eagle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eagle")
    (folder / "text.py").write_text(TEXT * 20)
    words = f"draft-heads {LIBRARY} --text {folder}/text.py --out {folder}/head --form eagle"
    assert run([*words.split(), "--steps", "12", "--batch", "2", "--seq", "32"]) == 0
    return folder / "head"


def answers(head: Path | None, **given: Any) -> tuple[dict[str, tuple[int, ...]], Any]:
    asked = None
    if head is not None:
        asked = SpeculationConfig(kind="eagle", path=str(head), num_drafts=3, always=True)
    engine = ServingEngine(
        EngineConfig(
            model=LIBRARY, device="cpu", dtype="fp32", threads=1, max_length=160, max_sequences=8,
            kv_bytes=2**24, speculation=asked, debug=True, **given,
        )
    )  # fmt: skip
    for at, prompt in enumerate(PROMPT_TOKENS):
        sampling = Sampling(max_tokens=40, temperature=0.0, ignore_eos=True)
        engine.handle(Submit(id=str(at), prompt=prompt, sampling=sampling))
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta), message
            found[message.id] = found.get(message.id, ()) + message.tokens
    return found, engine.stats()


def test_greedy_answers_are_those_without_guesses_and_some_guesses_hold(head: Path) -> None:
    facts = read_eagle(head).facts
    assert facts.steps == 12
    assert facts.held_out_accuracy[0] > 0.05
    wanted, _ = answers(None)
    found, stats = answers(head, block_size=4)
    assert found == wanted
    assert stats.accepted_tokens > 0.1 * stats.draft_rounds > 0


def test_guesses_are_those_of_the_whole_text_computed_at_once(head: Path) -> None:
    """Whatever was refused before: keys are the model's own states' alone."""
    from transformers import AutoModelForCausalLM

    asked = SpeculationConfig(kind="eagle", path=str(head), num_drafts=3, always=True)
    engine = ServingEngine(
        EngineConfig(model=LIBRARY, device="cpu", dtype="fp32", threads=1, speculation=asked)
    )
    sampling = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
    engine.handle(Submit(id="a", prompt=PROMPT_TOKENS[0], sampling=sampling))
    model, eagle = AutoModelForCausalLM.from_pretrained(LIBRARY).eval(), read_eagle(head)
    assert engine._speculating is not None
    propose, rounds = engine._speculating.drafter.propose, 0

    def compared(sequences: Any, states: Any, hidden: Any) -> Any:
        nonlocal rounds
        (found,) = propose(sequences, states, hidden)
        tokens = list(sequences[0].tokens)
        rows = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        for guess in found.tokens:
            ahead = eagle(model.get_input_embeddings()(torch.tensor([tokens[1:]])), rows)[:, -1:]
            assert guess == int(model.lm_head(ahead)[0, -1].argmax())
            tokens.append(guess)
            rows = torch.cat((rows, ahead), dim=1)
        rounds += len(found.tokens) > 1
        return [found]

    engine._speculating.drafter.propose = compared  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
    assert rounds >= 5


def test_what_is_no_head_for_this_model_is_refused_in_one_line(
    head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["generate", LIBRARY, "--prompt", "import", "--device", "cpu", "--speculative"]
    assert run([*asked, f"eagle:{tmp_path}"]) == 2
    assert "ridgeline draft-heads --form eagle" in " ".join(capsys.readouterr().err.split())
    facts = json.loads((head / "eagle.json").read_text())
    (tmp_path / "eagle.json").write_text(json.dumps({**facts, "vocab": 100}))
    (tmp_path / "eagle.safetensors").write_bytes((head / "eagle.safetensors").read_bytes())
    assert run([*asked, f"eagle:{tmp_path}"]) == 2
    assert "was trained for" in " ".join(capsys.readouterr().err.split())
