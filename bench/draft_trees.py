"""Tokens a round with guesses in a chain against trees, counted on a model with trained heads.

    ridgeline draft-heads examples/models/library --text train.txt --out heads
    python bench/draft_trees.py examples/models/library heads --text held_out.txt

Greedy answers to prompts cut from the text, the same for all; counts, no times. `foretold` is what
`cost/serving/draft_trees.py` makes of the accuracies that the heads' own training measured. The
folder of an EAGLE head goes in the place of heads', with its depth as `--num-drafts`; its trees are
made anew in each step, so that nothing is foretold of them.
"""

import argparse
import json
from pathlib import Path

from ridgeline.cost.serving.draft_trees import best_draft_tree
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.speculation.eagle import FACTS as EAGLE_FACTS
from ridgeline.serve.speculation.heads import read_heads

SIZES = (None, 4, 8, 16, 32, 63)
"""Guesses of each tree; None: a chain of all heads."""


def counted(
    model: str, text: str, prompts: int, asked: SpeculationConfig | None
) -> tuple[dict[str, float], list[tuple[int, ...]]]:
    """What the engine counted, and the answers."""
    config = EngineConfig(
        model=model, device="cpu", dtype="fp32", threads=1, max_sequences=8, speculation=asked
    )
    engine = ServingEngine(config)
    tokens = engine.model.tokenizer(text).input_ids
    stride = (len(tokens) - 64) // prompts
    for at in range(prompts):
        prompt = tuple(tokens[at * stride : at * stride + 64])
        sampling = Sampling(max_tokens=96, temperature=0.0, ignore_eos=True)
        engine.handle(Submit(id=str(at), prompt=prompt, sampling=sampling))
    answers: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta), message
            answers[message.id] = answers.get(message.id, ()) + message.tokens
    stats = engine.stats()
    rounds = stats.draft_rounds or 1
    found = {
        "steps": stats.steps,
        "rounds": stats.draft_rounds,
        "drafted a round": stats.drafted_tokens / rounds,
        "tokens a round": 1.0 + stats.accepted_tokens / rounds,
    }
    return found, [answers[str(at)] for at in range(prompts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("heads")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--num-drafts", type=int, default=4)
    given = parser.parse_args()
    text = given.text.read_text()
    eagle = (Path(given.heads) / EAGLE_FACTS).exists()
    ranks = () if eagle else read_heads(given.heads).facts.held_out_ranks
    depth = len(ranks) or given.num_drafts
    plain, wanted = counted(given.model, text, given.prompts, None)
    rows = [{"guesses": "none", **plain, "foretold": 1.0, "same answers": True}]
    for size in SIZES:
        asked = SpeculationConfig(
            kind="eagle" if eagle else "heads",
            path=given.heads,
            num_drafts=depth,
            tree=size,
            always=True,
        )
        found, answers = counted(given.model, text, given.prompts, asked)
        foretold = _foretold(ranks, size) if ranks else None
        name = f"chain of {depth}" if size is None else f"tree of {size}"
        rows.append(
            {"guesses": name, **found, "foretold": foretold, "same answers": answers == wanted}
        )
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        cells = (
            f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()
        )
        print(" | ".join(cells))


def _foretold(ranks: tuple[tuple[float, ...], ...], size: int | None) -> float:
    tree = best_draft_tree(ranks, size or 1)
    return tree.chain_tokens_per_round if size is None else tree.tokens_per_round


if __name__ == "__main__":
    main()
