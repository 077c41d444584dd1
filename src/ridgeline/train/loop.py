"""The training loop runs the steps from where the run stands to its last, watched and logged.

Nothing here knows how the model is laid out (`passes` runs forward and backward) or which
techniques train it: each is a `Part`, asked at the points that `part.py` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from ridgeline.records.recipe import Recipe
from ridgeline.records.training_run import LoggedStep
from ridgeline.train.build import Built
from ridgeline.train.checkpoint.saver import Saver
from ridgeline.train.parallel.context import cut_sequences
from ridgeline.train.ranks import Ranks
from ridgeline.train.survive.events import EventLog
from ridgeline.train.survive.guard import Guard
from ridgeline.train.task import Feed, MicroBatch
from ridgeline.train.watch.interval import LogInterval, PeakMemory
from ridgeline.train.watch.profiler_windows import ProfilerWindows


@dataclass(kw_only=True)
class Course:
    """The course of the run so far."""

    step: int = 0
    """Optimizer steps done, over all starts."""
    tokens: int = 0
    """Targets, tokens or images, over all starts."""
    step_samples: list[float] = field(default_factory=list)
    """Seconds of each step of this start."""
    last_line: LoggedStep | None = None
    validation_loss: float | None = None
    top1: float | None = None
    """Accuracy at the last evaluation of an image classifier."""
    stopped: str = ""


@dataclass(kw_only=True)
class Trainer:
    """The run of one rank, which ends when the last step is done or `stop` says why not."""

    recipe: Recipe
    ranks: Ranks
    built: Built
    loader: Feed
    held_out: Callable[[], Iterable[MicroBatch]]
    """Gives this rank's share of what is held out."""
    steps: int
    interval: LogInterval
    """Gathers what a line of the log says."""
    windows: ProfilerWindows
    memory: PeakMemory
    log: Callable[[LoggedStep], None]
    stop: Callable[[], str] = lambda: ""
    """Says after every step why the run must end now; empty: it goes on."""
    guard: Guard | None = None
    """Judges every step, whether to stop, to go back or to skip a batch."""
    events: EventLog | None = None
    """Where the time goes; rank 0 alone has one."""
    saver: Saver | None = None
    """Makes checkpoints of the run; None: there are none."""
    course: Course = field(default_factory=Course)
    _note: str = ""
    """What the next line of the log is to say."""
    _logged: int = 0
    """Steps of this start that the log has."""

    def run(self) -> Course:
        """Train to the last step."""
        course, settings = self.course, self.recipe.run
        while course.step < self.steps and not course.stopped:
            started = perf_counter()
            with self.windows.around(course.step):
                self._step(course.step)
            course.step += 1
            course.step_samples.append(perf_counter() - started)
            if self.events is not None:
                self.events.step(course.step)
            course.stopped = self.stop()
            done = course.step == self.steps
            if done and self.guard is not None:
                self.guard.settle()
            if done:
                for part in self.built.parts:
                    part.finish()
            last = done or bool(course.stopped)
            saving = self.saver is not None and (self.saver.due(course.step) or last)
            due = settings.evaluate_every and course.step % settings.evaluate_every == 0
            due = due or any(part.wants_evaluation(course.step) for part in self.built.parts)
            # Who is asked to stop has seconds left, and they are the checkpoint's.
            validation = self._evaluate() if done or due else None
            # Every checkpoint gets a line: a run that goes on from it has lost none.
            if last or due or saving or course.step % settings.log_every == 0:
                self._log(validation)
            if saving:
                self._save(wait=last)
        return course

    def _save(self, *, wait: bool) -> None:
        """Begin a checkpoint; no step is in it that will be taken back."""
        assert self.saver is not None
        if self.guard is not None:
            self.guard.settle()
        with self._aside("checkpoint"):
            self.saver.save(self.course.step, self.course.tokens, wait=wait)

    def _aside(self, kind: Literal["checkpoint", "evaluated"]) -> AbstractContextManager[None]:
        """Count what is inside as no part of a step."""
        events = self.events
        return nullcontext() if events is None else events.during(kind, self.course.step)

    def _next_batches(self) -> Sequence[MicroBatch]:
        # The loader draws a seed when it starts, and a run that goes on starts it once more.
        before = torch.get_rng_state()
        batches = next(self.loader)
        torch.set_rng_state(before)
        return batches

    def _step(self, step: int) -> None:
        built, phase = self.built, self.interval.phases.phase
        with phase("data"):
            self._pass_over()
            samples = self.loader.state_dict()["samples"]
            batches = self._next_batches()
            targets = self._targets()
            if self.ranks.size("cp") > 1:
                batches = [cut_sequences(batch, self.ranks) for batch in batches]
        for part in built.parts:
            self._note = part.before_step(step) or self._note
        # Each forward pass inside opens a phase of its own, so the rest of this is backward.
        with phase("backward"):
            loss = built.passes.run(batches, targets)
        with phase("optimizer"):
            norm = self._update(step)
        self.course.tokens += targets
        self.interval.add(loss, targets, norm)
        if self.guard is not None:
            self.guard.after_step(step, samples, loss, targets, norm)

    def _pass_over(self) -> None:
        """Leave out the batches that a step was rolled back for."""
        guard, loader = self.guard, self.loader
        while guard is not None:
            batch = guard.leaves_out(loader.state_dict()["samples"])
            if batch is None:
                return
            self._note = f"left out the batch of step {batch.step + 1}: {batch.why}"
            self._next_batches()

    def _targets(self) -> int:
        """Targets of the step, over all ranks whose gradients are summed."""
        count = self.loader.targets
        if self.built.ranks_alone or self.ranks.size("data") == 1:
            return count
        total = torch.tensor(count)
        dist.all_reduce(total, group=self.ranks.group("data"))
        return int(total)

    def _update(self, step: int) -> float | None:
        """Clip and step; the norm of the gradients before clipping."""
        built, limit = self.built, self.recipe.optimizer.clip_norm
        built.precision.unscale(built.optimizer)
        for part in built.parts:
            part.before_update(step)
        norm = None
        if limit:
            parameters = [p for module in built.passes.modules for p in module.parameters()]
            norm = clip_gradients(parameters, limit, self.ranks, alone=built.ranks_alone)
        if self.saver is not None and self.saver.holds_up():
            with self._aside("checkpoint"):
                self.saver.before_update()
        moved = built.precision.step(built.optimizer)
        for part in built.parts:
            part.after_update(step, moved=moved)
        built.optimizer.zero_grad(set_to_none=True)
        return norm

    def _evaluate(self) -> float | None:
        batches = self.held_out()
        with self.interval.phases.paused(), self._aside("evaluated"):
            found = validation_loss(self.built, batches, self.ranks)
        self.course.validation_loss = found
        return found

    def _log(self, validation: float | None) -> None:
        samples = self.course.step_samples[self._logged :]
        self._logged = len(self.course.step_samples)
        line = self.interval.line(
            self.course.step, samples, self.built.parts, self.memory, validation
        )
        line = msgspec.structs.replace(line, **self.loader.figures())
        if line.top1 is not None:
            self.course.top1 = line.top1
        notes = [one for one in (self._note, self.loader.take_notes()) if one]
        if notes:
            line, self._note = msgspec.structs.replace(line, note="; ".join(notes)), ""
        self.course.last_line = line
        self.log(line)
        if line.drift:
            self.windows.ask()
            if self.events is not None:
                self.events.write("drifted", self.course.step, line.drift)


def validation_loss(built: Built, batches: Iterable[MicroBatch], ranks: Ranks) -> float | None:
    """Mean loss of a target, over all ranks; None where there is nothing held out.

    Args:
        built: Its passes take the losses.
        batches: This rank's share, as many on every rank.
        ranks: Ranks that read different data add up.
    """
    modules = built.passes.modules
    total = torch.zeros(2, dtype=torch.float64)
    for module in modules:
        module.eval()
    with ExitStack() as stack:
        for part in built.parts:
            stack.enter_context(part.around_evaluation())
        for batch in batches:
            targets = batch.num_targets()
            loss = built.passes.evaluate(cut_sequences(batch, ranks))
            total += torch.tensor([float(loss), targets], dtype=torch.float64)
    for module in modules:
        module.train()
    if ranks.size("data") > 1:
        total = total.to(ranks.device)
        dist.all_reduce(total, group=ranks.group("data"))
    loss, targets = total.tolist()
    return loss / targets if targets else None


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float, ranks: Ranks, *, alone: bool = False
) -> float:
    """Scale all gradients so that their common norm is at most `limit`; 0 clips nothing.

    Every rank must call it. Equals `torch.nn.utils.clip_grad_norm_` of one process, which stacks
    norms, what DTensors of different meshes do not allow, and knows nothing of pipeline stages.
    Here each rank sums the squares of its own elements, each divided by how many ranks hold a copy
    of it, and one all-reduce over all ranks gives the square of the norm (Megatron-LM counts the
    same way, leaving copies out). Ranks with the same gradient then scale it by the same factor.

    Args:
        parameters: This rank's. What has `counted_elsewhere` (a head that is the embedding of
            another pipeline stage) is scaled and not counted.
        limit: The largest norm that is left as it is.
        ranks: This process's place.
        alone: This rank's whole gradients are its own (local SGD); no other rank is asked.

    Returns:
        The norm before clipping.
    """
    kept = [one for one in parameters if one.grad is not None]
    counted = [one.grad for one in kept if not getattr(one, "counted_elsewhere", False)]
    norm = gradient_norm(counted, None if alone else ranks)
    if limit > 0.0:
        # The same small number as torch's: a norm of 0 divides nothing.
        factor = min(1.0, limit / (norm + 1e-6))
        if factor < 1.0:
            torch._foreach_mul_([_local(one.grad) for one in kept], factor)
    return norm


def gradient_norm(gradients: Iterable[Tensor], ranks: Ranks | None) -> float:
    """The L2 norm of all ranks' gradients together, each element counted once.

    Without `ranks`, of this one's alone.
    """
    by_copies: dict[int, list[Tensor]] = {}
    for gradient in gradients:
        local = _local(gradient)
        if local.numel():
            copies = 1 if ranks is None else _copies(gradient, ranks)
            by_copies.setdefault(copies, []).append(local)
    device = torch.device("cpu") if ranks is None else ranks.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies, locals_ in by_copies.items():
        norms = torch._foreach_norm(locals_, 2, dtype=torch.float32)
        squares = torch.stack([norm.to(device, torch.float64) for norm in norms]).square()
        total += squares.sum() / copies
    if ranks is not None and ranks.world > 1:
        dist.all_reduce(total)
    return float(total.sqrt())


def _copies(gradient: Tensor, ranks: Ranks) -> int:
    """Ranks of the world that hold these same elements.

    A pipeline stage is held by world / pp ranks. What a DTensor does not spread over a mesh it
    repeats there; a plain tensor is repeated on all of the stage's ranks.
    """
    stage = ranks.world // ranks.size("pp")
    if not isinstance(gradient, DTensor):
        return stage
    spread = 1
    for axis, placement in enumerate(gradient.placements):
        assert not isinstance(placement, Partial), "backward completes sums"
        if not isinstance(placement, Replicate):
            spread *= gradient.device_mesh.size(axis)
    return stage // spread


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
