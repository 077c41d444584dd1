"""The training of draft heads: the model stays as it is, only the heads learn.

With h_t the model's last hidden state after token t of a text, and p_t the distribution that the
model itself has there, head i learns p_(t + i), and nearer heads weigh more:

    loss = Σ_i  λ^i · cross entropy(p_(t + i), softmax(output embedding · head_i(h_t)))   i = 1 … K

Cai et al., "Medusa", 2401.10774, section 2.2 (Medusa-1, λ = 0.8), but with the model's word in the
place of the text's: what counts is agreement with the model, not with the world. The text should
be such as the model will be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.checkpoints.tokenizer import read_tokenizer
from ridgeline.errors import InputError
from ridgeline.models.folder import check_model_folder, read_whole
from ridgeline.records.input_file import read_text
from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.speculation.eagle_facts import EagleFacts
from ridgeline.serve.speculation.heads import DraftHeads, HeadFacts
from ridgeline.serve.speculation.train_eagle import eagle_agreement, eagle_loss, new_eagle

DECAY = 0.8
"""The weight λ of each head over the one before."""
HELD_OUT = 0.05
"""Share of the text, at its end, that is not trained on."""
MOST_HELD_OUT_ROWS = 64
RANKS = 10
"""The guesses of a head whose accuracy is measured."""
PROGRESS = "training.pt"
SAVE_EVERY = 100
WARM_UP = 0.05
"""Share of the steps."""


class HeadTraining(msgspec.Struct, frozen=True, kw_only=True):
    """What `ridgeline draft-heads` is told."""

    model: str
    text: str
    form: Literal["heads", "eagle"] = "heads"
    """An EAGLE head asks for neither number, blocks nor widening."""
    num_heads: int = 4
    num_blocks: int = 1
    widening: int = 4
    steps: int = 500
    batch: int = 8
    seq: int = 256
    learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is after a step."""

    step: int
    steps: int
    loss: float


def train_heads(
    settings: HeadTraining, out: Path, on_progress: Callable[[Progress], None] = lambda _: None
) -> HeadFacts | EagleFacts:
    """Train heads and write them to a folder; a folder with half of a training goes on from there.

    Raises:
        InputError: Model or text cannot be used, or the folder holds another training.
    """
    model, tokenizer = _read(settings.model)
    rows = _rows(tokenizer, settings)
    held_out = max(1, min(MOST_HELD_OUT_ROWS, int(HELD_OUT * len(rows))))
    training, testing = rows[:-held_out], rows[-held_out:]
    heads = _new_heads(model, settings)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    done = _resume(out, settings, heads, optimizer)
    for step, batch in enumerate(_batches(training, settings, done), start=done + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _rate(step, settings.steps)
        loss = _loss(model, heads, batch, settings.seed * 1_000_003 + step)
        loss.backward()
        nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_progress(Progress(step, settings.steps, loss.item()))
        if step % SAVE_EVERY == 0 and step < settings.steps:
            _save_progress(out, settings, heads, optimizer, step)
    facts = _judged(model, heads, testing, settings.steps)
    heads.save(out)
    (out / PROGRESS).unlink(missing_ok=True)
    return facts


@torch.inference_mode()
def accuracy(model: Any, heads: DraftHeads, rows: Tensor) -> tuple[tuple[float, ...], ...]:
    """How often each guess of each head is what the model itself would say, on [N, T] text.

    The model's word is its argmax given the text, so this is the chance that the guess survives
    greedy decoding if all before it did. By head, by rank of the guess.
    """
    count = min(RANKS, heads.facts.vocab)
    agreed = torch.zeros(heads.facts.num_heads, count)
    counts = torch.zeros(heads.facts.num_heads, 1)
    for batch in rows.split(8):
        states = _states(model, batch)
        own = _logits(model, states).argmax(-1)
        for head, ahead in enumerate(heads(states), start=1):
            guesses = _logits(model, ahead[:, :-head]).topk(count).indices
            right = guesses == own[:, head:, None]
            agreed[head - 1] += right.sum((0, 1)).cpu()
            counts[head - 1] += guesses.shape[0] * guesses.shape[1]
    return tuple(tuple(one) for one in (agreed / counts).tolist())


@torch.inference_mode()
def _judged(
    model: Any, heads: DraftHeads | EagleHead, testing: Tensor, steps: int
) -> HeadFacts | EagleFacts:
    """What the heads are to say of themselves, with how good they are."""
    if isinstance(heads, EagleHead):
        count = min(RANKS, heads.facts.vocab)
        each = [
            torch.stack(eagle_agreement(model, heads, row, _states(model, row), _logits, count))
            for row in testing.split(1)
        ]
        ranks = tuple(tuple(one) for one in torch.stack(each).mean(0).tolist())
    else:
        ranks = accuracy(model, heads, testing)
    heads.facts = msgspec.structs.replace(
        heads.facts,
        steps=steps,
        held_out_accuracy=tuple(one[0] for one in ranks),
        held_out_ranks=ranks,
    )
    return heads.facts


def _loss(model: Any, heads: DraftHeads | EagleHead, batch: Tensor, seed: int) -> Tensor:
    states = _states(model, batch)
    if isinstance(heads, EagleHead):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return eagle_loss(model, heads, batch, states, _logits)
    with torch.no_grad():
        own = _logits(model, states).softmax(-1)
    total = torch.zeros((), device=states.device)
    for head, ahead in enumerate(heads(states), start=1):
        logprobs = _logits(model, ahead[:, :-head]).log_softmax(-1)
        total = total - DECAY**head * (own[:, head:] * logprobs).sum(-1).mean()
    return total


def _states(model: Any, batch: Tensor) -> Tensor:
    with torch.no_grad():
        batch = batch.to(model.device)
        return model.base_model(input_ids=batch, use_cache=False).last_hidden_state.float()


def _logits(model: Any, states: Tensor) -> Tensor:
    """Logits in float32, as the heads are; the output embedding is in the model's dtype."""
    return model.get_output_embeddings()(states.to(model.dtype)).float()


def _rate(step: int, steps: int) -> float:
    """Share of the learning rate: a short rise, then linear to 0."""
    warm = max(1, int(WARM_UP * steps))
    return min(step / warm, (steps + 1 - step) / max(1, steps + 1 - warm))


def _batches(rows: Tensor, settings: HeadTraining, done: int) -> Iterator[Tensor]:
    """The same rows at the same step, however often the training was interrupted."""
    for step in range(done, settings.steps):
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
        picked = torch.randint(len(rows), (settings.batch,), generator=generator)
        yield rows[picked]


def _read(path: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    check_model_folder(Path(path))
    logging.disable_progress_bar()
    model = read_whole(AutoModelForCausalLM, path, dtype="auto")
    if torch.cuda.is_available():
        model = model.cuda()
    return model.requires_grad_(requires_grad=False).eval(), read_tokenizer(path)


def _rows(tokenizer: Any, settings: HeadTraining) -> Tensor:
    """[N, seq] tokens of the text."""
    text = read_text(Path(settings.text), option="--text")
    tokens = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    count = len(tokens) // settings.seq
    if count < 2:
        raise InputError(
            f"--text {settings.text} has {len(tokens)} tokens; at least {2 * settings.seq} are "
            "needed (or a smaller --seq)"
        )
    if settings.form == "heads" and settings.num_heads + 1 > settings.seq:
        raise InputError(f"{settings.num_heads} heads look beyond rows of {settings.seq} tokens")
    return torch.tensor(tokens[: count * settings.seq]).view(count, settings.seq)


def _new_heads(model: Any, settings: HeadTraining) -> DraftHeads | EagleHead:
    if settings.form == "eagle":
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            return new_eagle(model, settings.model)
    config = model.config.get_text_config()
    facts = HeadFacts(
        model=settings.model,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        num_heads=settings.num_heads,
        num_blocks=settings.num_blocks,
        widening=settings.widening,
    )
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        return DraftHeads(facts).to(model.device)


def _resume(
    out: Path,
    settings: HeadTraining,
    heads: DraftHeads | EagleHead,
    optimizer: torch.optim.Optimizer,
) -> int:
    """Steps that are done."""
    path = out / PROGRESS
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True, map_location="cpu")
    if state["settings"] != msgspec.json.encode(settings):
        raise InputError(f"{out} holds a training with other settings; choose another --out")
    heads.load_state_dict(state["heads"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _save_progress(
    out: Path,
    settings: HeadTraining,
    heads: DraftHeads | EagleHead,
    optimizer: torch.optim.Optimizer,
    step: int,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    state = {
        "settings": msgspec.json.encode(settings),
        "heads": heads.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    partial = out / f"{PROGRESS}.partial"
    torch.save(state, partial)
    partial.replace(out / PROGRESS)
