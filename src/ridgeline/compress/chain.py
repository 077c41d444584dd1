"""A chain of compressions and trainings as one ledger: each stage a row, measured when it is done.

    1. A stage makes a directory in `OUT.partial`, from that of the stage above it: a scheme block
       by block (`apply.py`), a recipe by the training that the caller hands in.
    2. It is read back, put through the text beside the model as given, and its row is written.
    3. After the last, all of them decode in turns, and the last directory gets its name.

What is whole in `OUT.partial` is not made or judged again: a chain that was ended, at whatever
moment, goes on with the same command. Stages below the one that is under way may be changed in the
file meanwhile; of the others each knows what it was made by, and another order is refused.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from ridgeline.compress.apply import (
    LEDGER,
    SavedScheme,
    SchemeRow,
    check_order,
    refusal,
    row,
    steps,
)
from ridgeline.compress.evaluate.allowance import allowance
from ridgeline.compress.evaluate.judge import Bench, OnProgress, QualityJudge, with_speed
from ridgeline.compress.evaluate.loaded import (
    check_directory,
    device_of,
    positions_of,
    tokenizer_of,
)
from ridgeline.compress.evaluate.text import TextWindows, read_text, text_windows
from ridgeline.compress.material import CALIBRATION_TOKENS, USUAL_LENGTH, calibration_tokens
from ridgeline.compress.merging import merge
from ridgeline.compress.weight_spread import weight_spreads
from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.measure.device_name import device_name
from ridgeline.records.compression import CompressionLedger, CompressionRow, StageTraining
from ridgeline.records.compression_chain import (
    GIVEN,
    ChainStage,
    CompressionChain,
    later_schemes,
    recipe_of,
    scheme_of,
)
from ridgeline.records.recipe import Recipe
from ridgeline.records.store import read_record, write_atomically, write_record
from ridgeline.records.training_run import TrainingRun
from ridgeline.records.work_folder import held

ROW, ORDER, MADE, RUN = "row.json", "stage.json", "made.json", "run"
RESULT, MODEL, ADAPTER, MERGED = "run.json", "model", "adapter", "merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDoor:
    """How a chain has models trained: `ridgeline train`, handed in by who may know both."""

    check: Callable[[Recipe], None]
    """Raises InputError where a recipe cannot run."""
    run: Callable[[Recipe, Path], TrainingRun]
    """Trains into a folder, or goes on there; the trained model is in `model` or `adapter`."""


def compress_chain(
    chain: CompressionChain,
    folder: Path,
    out: Path,
    training: TrainingDoor,
    *,
    device: str = "auto",
    bench: Bench | None = None,
    on_progress: OnProgress = lambda _: None,
) -> CompressionLedger:
    """Carry a chain out, or go on with it, and save the last stage's model with its ledger.

    Args:
        chain: As `read_chain` gives it.
        folder: Of the chain's file, for the recipes' relative paths.
        out: The new directory; until all is done, everything lies in `OUT.partial`.
        training: Trains the stages that have a recipe.
        device: Where schemes are applied and rows judged: auto, cpu or cuda.
        bench: Measures decoding; None: speed is left out.
        on_progress: Told what is under way.

    Raises:
        InputError: Something that was given cannot be used.
        Interrupted, Preempted: A signal ended a stage that trains; the same call goes on.
    """
    made = _Chain(chain, folder, out, training, device, on_progress)
    made.check()
    with held(made.work, out):
        return made.carry_out(bench)


@dataclass
class _Chain:
    """One chain under way."""

    chain: CompressionChain
    folder: Path
    out: Path
    training: TrainingDoor
    device: str
    on_progress: OnProgress
    models: dict[str, Path] = field(default_factory=dict)
    """Directories by the names of their stages, in their order."""
    rows: list[CompressionRow] = field(default_factory=list)
    _judge: QualityJudge | None = None
    _windows: TextWindows | None = None
    _tokens: Tensor | None = None

    @property
    def work(self) -> Path:
        return self.out.with_name(f"{self.out.name}.partial")

    def carry_out(self, bench: Bench | None) -> CompressionLedger:
        """All stages, the ledger, and the last model's name."""
        self.models[GIVEN] = Path(self.chain.model)
        self.rows.append(self._kept(self.work / ROW, lambda: self._judging().baseline()))
        for stages in _segments(self.chain):
            self._make(stages)
            for stage in stages:
                refused = self._judged(stage)
                if refused:
                    return self._ended(stage, refused)
        if bench is not None:
            self._let_go()
            self.rows = with_speed(self.rows, bench(list(self.models.values()), self.on_progress))
        return self._finished()

    def check(self) -> None:
        """What can be known to fail before anything is computed."""
        device_of(self.device)
        check_directory("model", Path(self.chain.model))
        if self.out.exists():
            raise InputError(f"--out {self.out}: exists already; give another name or remove it")
        read_text("text", Path(self.chain.text))
        for stages in _segments(self.chain):
            check_order([one for stage in stages if (one := scheme_of(stage)) is not None])
        stand_ins = {GIVEN: Path(self.chain.model)}
        for stage in self.chain.stages:
            if stage.max_loss:
                allowance(f"stage {stage.name}: max_loss", stage.max_loss)
            if stage.recipe is not None:
                try:
                    self.training.check(recipe_of(self.chain, stage, stand_ins, self.folder))
                except InputError as error:
                    raise InputError(f"stage {stage.name}: {error}") from None
            stand_ins[stage.name] = Path(self.chain.model)

    # -- stages ------------------------------------------------------------------------------------

    def _make(self, stages: list[ChainStage]) -> None:
        """The directories of a stage that trains, or of schemes that follow one another."""
        first = stages[0]
        for stage in stages:
            self._claim(stage)
        if first.recipe is not None:
            self.models[first.name] = self._trained(first)
            return
        schemes = [one for stage in stages if (one := scheme_of(stage)) is not None]
        calibrated = any(one.needs_calibration for one in schemes)
        above = list(self.models.values())[-1]
        made = steps(
            above,
            schemes,
            self._place(first),
            self._calibration() if calibrated else None,
            self.on_progress,
            later_schemes(self.chain, stages[-1].name),
        )
        for stage, found in zip(stages, made, strict=True):
            self.models[stage.name] = found.directory
            note = self._place(stage) / MADE
            if not note.exists():
                write_atomically(note, msgspec.json.encode(found.applied))

    def _trained(self, stage: ChainStage) -> Path:
        place = self._place(stage)
        recipe = recipe_of(self.chain, stage, self.models, self.folder)
        made = place / RUN / (MODEL if recipe.adapter is None else ADAPTER)
        if not made.exists() or not (place / RUN / RESULT).exists():
            self._let_go()  # what is trained needs the memory
            self.on_progress(f"{stage.name}: training")
            self.training.run(recipe, place / RUN)
        if recipe.adapter is None:
            return made
        merged = place / MERGED
        if not merged.exists():
            self.on_progress(f"{stage.name}: merging the adapter")
            merge(Path(recipe.model.checkpoint or recipe.model.config), made, merged)
        return merged

    def _place(self, stage: ChainStage) -> Path:
        return self.work / f"{self.chain.stages.index(stage) + 1:02}-{stage.name}"

    def _claim(self, stage: ChainStage) -> None:
        """The folder of a stage is of this chain up to it."""
        number = self.chain.stages.index(stage) + 1
        until = replace(self.chain, stages=self.chain.stages[:number])
        order, path = msgspec.json.encode(until), self._place(stage) / ORDER
        if not path.exists():
            write_atomically(path, order)
        elif path.read_bytes() != order:
            raise InputError(
                f"stage {stage.name}: {path.parent} was made by another model, text, recipe or"
                " stage above; put back what was changed, or remove that folder and those after it"
            )

    # -- rows --------------------------------------------------------------------------------------

    def _judged(self, stage: ChainStage) -> str:
        """Add the row of a stage; why the chain ends here, if it does."""
        self.rows.append(self._kept(self._place(stage) / ROW, lambda: self._row(stage)))
        allowed = allowance("max_loss", stage.max_loss) if stage.max_loss else None
        before = self.rows[0].quality
        assert before is not None
        return refusal(before, self.rows[-1], allowed)

    def _row(self, stage: ChainStage) -> CompressionRow:
        place, directory = self._place(stage), self.models[stage.name]
        if stage.recipe is not None:
            training = _training_of(read_record(place / RUN / RESULT, TrainingRun))
            applied = SavedScheme(seconds=training.seconds)
            step = SchemeRow(scheme=stage.name, directory=directory, applied=applied)
            return replace(row(self._judging(), step), training=training)
        applied = msgspec.json.decode((place / MADE).read_bytes(), type=SavedScheme)
        name = f"{stage.name} ({stage.scheme})"
        step = SchemeRow(scheme=name, directory=directory, applied=applied)
        return row(self._judging(), step)

    def _kept(self, path: Path, make: Callable[[], CompressionRow]) -> CompressionRow:
        """A row that is measured once."""
        if path.exists():
            return read_record(path, CompressionRow, ours=True)
        made = make()
        write_record(path, made)
        return made

    # -- what is held while stages go by -----------------------------------------------------------

    def _judging(self) -> QualityJudge:
        if self._judge is None:
            self._judge = QualityJudge(
                self.models[GIVEN], self._text(), self.device, self.on_progress
            )
        return self._judge

    def _text(self) -> TextWindows:
        if self._windows is None:
            chain, given = self.chain, self.models[GIVEN]
            self._windows = text_windows(
                read_text("text", Path(chain.text)),
                chain.text,
                tokenizer_of("model", given),
                context=chain.context,
                stride=chain.stride,
                positions=positions_of("model", given),
            )
        return self._windows

    def _let_go(self) -> None:
        """Leave the memory of the model as given to who comes."""
        self._judge = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _calibration(self) -> Tensor:
        if self._tokens is None:
            length = self.chain.context or USUAL_LENGTH
            self._tokens = calibration_tokens(
                Path(self.chain.model),
                Path(self.chain.calibration),
                sequences=CALIBRATION_TOKENS // length,
                length=length,
                option="calibration",
            )
        return self._tokens

    # -- the end -----------------------------------------------------------------------------------

    def _ended(self, stage: ChainStage, why: str) -> CompressionLedger:
        """The ledger of a chain whose stage lost too much; what is done stays for another try."""
        sensitive = self._judging().most_sensitive(self.models[stage.name], stage.name)
        return replace(
            self._ledger(),
            allowed=stage.max_loss or None,
            refused=f"stage {stage.name}: {why}",
            sensitive=sensitive,
        )

    def _finished(self) -> CompressionLedger:
        """The ledger; the last model's directory gets its name."""
        last, directory = self.chain.stages[-1], list(self.models.values())[-1]
        ledger = replace(
            self._ledger(),
            allowed=last.max_loss or None,
            saved=str(self.out),
            spreads_before=weight_spreads(self.models[GIVEN]),
            spreads=weight_spreads(directory),
        )
        write_record(directory / LEDGER, ledger)
        directory.rename(self.out)
        shutil.rmtree(self.work, ignore_errors=True)
        return ledger

    def _ledger(self) -> CompressionLedger:
        return CompressionLedger(
            model=self.chain.model,
            protocol=self._text().protocol,
            rows=tuple(self.rows),
            allowed=None,
            environment=environment(device=device_name(device_of(self.device))),
        )


def _segments(chain: CompressionChain) -> Iterator[list[ChainStage]]:
    """Each stage that trains alone; schemes that follow one another together, as `steps` wants."""
    for trains, stages in groupby(chain.stages, lambda stage: stage.recipe is not None):
        if trains:
            yield from ([stage] for stage in stages)
        else:
            yield list(stages)


def _training_of(run: TrainingRun) -> StageTraining:
    goodput = run.goodput
    return StageTraining(
        steps=run.steps,
        tokens=run.tokens,
        seconds=run.wall_seconds if goodput is None else goodput.wall_seconds,
        final_loss=run.final_loss,
        validation_loss=run.validation_loss,
    )
