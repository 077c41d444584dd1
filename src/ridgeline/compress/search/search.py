"""The search behind `ridgeline compress --target`: the smallest or fastest model within a loss.

1. The whole model is compressed by every candidate alone.
2. Each unit's price is measured under every candidate: KL when it alone is compressed.
3. `budget.path` orders the combinations; the one whose prices add up to the budget is measured,
then ones before or after it, until two neighbours enclose the budget: the sum of prices misleads,
the measurement does not. A combination is put together from the uniformly compressed models, whose
methods saw other activations than it will.
4. The cheapest that held is compressed as it will be saved, read back and judged again; where
it does not hold any more, the search steps back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from ridgeline.checkpoints.compressed_writer import check_together
from ridgeline.compress.apply import SavedScheme, SchemeRow, finished, row, saved
from ridgeline.compress.evaluate.allowance import Allowance
from ridgeline.compress.evaluate.judge import AS_GIVEN, Bench, OnProgress, QualityJudge, with_speed
from ridgeline.compress.evaluate.sensitive import layer_losses, swapped
from ridgeline.compress.material import Material, claimed, prepared
from ridgeline.compress.run import CompressionJob
from ridgeline.compress.search.budget import Combination, Option, Walk, path
from ridgeline.compress.search.units import Costs, Unit, sizes, times, units_of
from ridgeline.errors import InputError
from ridgeline.records.appended import AppendedFile, read_lines
from ridgeline.records.compression import (
    Chosen,
    CompressionLedger,
    CompressionRow,
    Divergence,
    LayerLoss,
    Quality,
    Search,
)
from ridgeline.records.input_file import read_json
from ridgeline.records.scheme import Scheme
from ridgeline.records.scheme_names import parse
from ridgeline.records.store import write_atomically

FILE = "sensitivities.jsonl"


class SearchLog:
    """What a search has measured, a line each, so that an interrupted one goes on from there.

    A line that a crash cut short is left out and measured again.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        self.losses: dict[tuple[str, str], LayerLoss] = {}
        for loss in read_lines(path, msgspec.json.Decoder(LayerLoss).decode):
            self._keep(loss)
        self._file = AppendedFile(path)

    def add(self, loss: LayerLoss) -> None:
        """On the disk when this returns."""
        self._file.append(msgspec.json.encode(loss), sync=True)
        self._keep(loss)

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()

    def _keep(self, loss: LayerLoss) -> None:
        self.losses[loss.layer, loss.scheme] = loss


def measured(
    judge: QualityJudge,
    combination: Combination,
    layers: Mapping[str, tuple[str, ...]],
    uniform: Mapping[str, Path],
) -> tuple[Quality, Divergence]:
    """Quality of a combination.

    Args:
        judge: With the model as given.
        combination: By unit.
        layers: Of each unit.
        uniform: Scheme → directory of the model with that scheme throughout.
    """
    used = {option.scheme for option in combination.chosen.values()} - {AS_GIVEN}
    subject = judge.fresh()
    with ExitStack() as swaps:
        for scheme in sorted(used):
            other = judge.load(uniform[scheme]).model
            names = [
                layer
                for unit, option in combination.chosen.items()
                if option.scheme == scheme
                for layer in layers[unit]
            ]
            swaps.enter_context(swapped(subject.model, other, names))
        return judge.compare(subject, "a combination")


AIMS = ("size", "latency")
USUAL = ("w4a16-gptq-g128", "w4a16-gptq-g32", "w8a16-channel")
"""Candidates where none are named: what `ridgeline serve`, vLLM and transformers all run."""
COSTS = "costs.json"
"""Seconds that were measured, in the working folder."""
MOST_SAVED = 4
"""Combinations that are compressed to be saved."""
METHODS = ("rtn", "gptq")
"""Others change layers together with their neighbours, so that no layer can be swapped alone."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a search stands on: its layers, and the model under every candidate."""

    material: Material
    candidates: tuple[Scheme, ...]
    tokens: Tensor | None
    units: dict[str, Unit]
    uniform: dict[str, Path]

    def fitting(self, scheme: Scheme) -> list[Unit]:
        return [unit for unit in self.units.values() if unit.takes(scheme)]

    def compress(
        self, of_layer: Mapping[str, Scheme], directory: Path, name: str, on_progress: OnProgress
    ) -> SavedScheme:
        job = CompressionJob(
            model=self.material.model,
            schemes=(),
            of_layer={layer: (scheme,) for layer, scheme in of_layer.items()},
            work=directory.with_name(f"{directory.name}.blocks"),
            tokens=self.tokens,
        )
        return saved(job, directory, name, on_progress)


def search(
    material: Material,
    target: Allowance,
    aim: str,
    schemes: Sequence[Scheme] = (),
    *,
    bench: Bench | None = None,
    on_progress: OnProgress = lambda _: None,
) -> CompressionLedger:
    """Choose a scheme for every layer, and save the result.

    Args:
        material: Model, texts, and where to.
        target: What may be lost.
        aim: What is made small, one of `AIMS`: bytes on disk, or the time of a decode step.
        schemes: Candidates; none: `USUAL`, as far as their groups divide the model's layers.
        bench: Measures decoding; `latency` needs it.
        on_progress: Told what is under way.

    Raises:
        InputError: Something that was given cannot be used, or no candidate gains anything.
    """
    if aim == "latency" and bench is None:
        raise InputError("--for latency: decoding has to be measured; leave --no-speed away")
    candidates = tuple(schemes) or tuple(parse(name) for name in USUAL)
    for scheme in candidates:
        _check_candidate(scheme)
    check_together(candidates)
    order = ["--target", target.text, "--for", aim, *(scheme.name for scheme in candidates)]
    with claimed(material, candidates, order):
        ground, judge = _ground(material, candidates, on_progress, named=bool(schemes))
        return _searched(ground, judge, target, aim, bench, on_progress)


def _searched(
    ground: _Ground,
    judge: QualityJudge,
    target: Allowance,
    aim: str,
    bench: Bench | None,
    on_progress: OnProgress,
) -> CompressionLedger:
    material = ground.material
    costs = _costs(ground, aim, bench, on_progress)
    prices = _prices(ground, judge, costs, on_progress)
    walk = Walk(path(_options(prices, costs)), judge.quality, target)
    if len(walk.combinations) == 1:
        raise InputError("--target: no candidate makes any layer cheaper; name others by --scheme")
    layers = {name: unit.layers for name, unit in ground.units.items()}
    walk.run(lambda one: measured(judge, one, layers, ground.uniform))
    found, place = _saved_row(ground, judge, walk, on_progress)
    rows = [judge.baseline(), found]
    directory = _place(material, place)
    if bench is not None:
        rows = with_speed(rows, bench([material.model, directory], on_progress))
    told = Search(
        target=target.text,
        aim=aim,
        candidates=tuple(scheme.name for scheme in ground.candidates),
        sensitivities=tuple(prices.losses.values()),
        attempts=tuple(walk.attempts),
        chosen=_chosen(walk.combinations[place], layers),
    )
    return finished(material, judge, rows, directory, target, told)


def _ground(
    material: Material, candidates: tuple[Scheme, ...], on_progress: OnProgress, *, named: bool
) -> tuple[_Ground, QualityJudge]:
    tokens, judged = prepared(material, calibrated=any(one.needs_calibration for one in candidates))
    if judged is None:
        raise InputError("--target: a search has to judge; leave --unjudged away")
    units = {unit.name: unit for unit in units_of(material.model)}
    useful = [one for one in candidates if any(unit.takes(one) for unit in units.values())]
    useless = [one.name for one in candidates if one not in useful]
    if useless and (named or not useful):
        raise InputError(f"--scheme {useless[0]}: its groups divide no layer of the model")
    uniform = {one.name: material.work / f"uniform-{one.name}" for one in useful}
    ground = _Ground(material, tuple(useful), tokens, units, uniform)
    for scheme in useful:
        of_layer = {layer: scheme for unit in ground.fitting(scheme) for layer in unit.layers}
        ground.compress(of_layer, uniform[scheme.name], scheme.name, on_progress)
    return ground, QualityJudge(material.model, judged, material.device, on_progress)


def _check_candidate(scheme: Scheme) -> None:
    if scheme.weights is None or scheme.pruning is not None or scheme.kv is not None:
        raise InputError(f"--scheme {scheme.name}: a search chooses how weights are quantised")
    if scheme.method not in METHODS:
        raise InputError(
            f"--scheme {scheme.name}: {scheme.method} changes layers together with their"
            f" neighbours; a search chooses layer by layer among {' and '.join(METHODS)}"
        )


def _costs(ground: _Ground, aim: str, bench: Bench | None, on_progress: OnProgress) -> Costs:
    units = list(ground.units.values())
    directories = {AS_GIVEN: ground.material.model, **ground.uniform}
    if aim == "size":
        return sizes(units, directories)
    assert bench is not None
    fitting = {scheme.name: ground.fitting(scheme) for scheme in ground.candidates}
    path = ground.material.work / COSTS
    if not path.exists():
        found = times(units, fitting, directories, bench, on_progress)
        rows = [(unit, scheme, cost) for (unit, scheme), cost in found.items()]
        write_atomically(path, msgspec.json.encode(rows))
    # Read back either way: a search that is gone on with stands on the same seconds.
    kept = read_json(path, list[tuple[str, str, float]])
    return {(unit, scheme): cost for unit, scheme, cost in kept}


def _prices(
    ground: _Ground, judge: QualityJudge, costs: Costs, on_progress: OnProgress
) -> SearchLog:
    """KL of every unit under every scheme that has a cost; what the log knows is not redone."""
    log = SearchLog(ground.material.work)
    watched = judge.watched()
    for scheme, directory in ground.uniform.items():
        left = [
            unit
            for name, unit in ground.units.items()
            if (name, scheme) in costs and (name, scheme) not in log.losses
        ]
        if not left:
            continue
        other = judge.load(directory).model
        losses = layer_losses(watched, other, [unit.layers for unit in left], scheme)
        for place, loss in enumerate(losses):
            log.add(loss)
            on_progress(f"sensitivity under {scheme}: {place + 1} of {len(left)}")
    log.close()
    return log


def _options(prices: SearchLog, costs: Costs) -> dict[str, list[Option]]:
    options: dict[str, list[Option]] = {}
    for (unit, scheme), cost in costs.items():
        loss = 0.0 if scheme == AS_GIVEN else prices.losses[unit, scheme].kl
        options.setdefault(unit, []).append(Option(scheme, cost, loss))
    return options


def _place(material: Material, place: int) -> Path:
    return material.work / f"chosen-{place}"


def _saved_row(
    ground: _Ground, judge: QualityJudge, walk: Walk, on_progress: OnProgress
) -> tuple[CompressionRow, int]:
    """Compress what the walk found; back along the path while that loses more than allowed."""
    schemes = {scheme.name: scheme for scheme in ground.candidates}
    place = max(1, walk.low)
    for _ in range(MOST_SAVED):
        combination = walk.combinations[place]
        of_layer = {
            layer: schemes[option.scheme]
            for unit, option in combination.chosen.items()
            if option.scheme != AS_GIVEN
            for layer in ground.units[unit].layers
        }
        directory = _place(ground.material, place)
        name = _named(of_layer)
        applied = ground.compress(of_layer, directory, name, on_progress)
        found = row(judge, SchemeRow(scheme=name, directory=directory, applied=applied))
        assert found.quality is not None
        assert found.divergence is not None
        if walk.tell(place, found.quality, found.divergence) or place == 1:
            return found, place
        kept, place = place, max(1, min(walk.next, place - 1))
        on_progress(f"{name} lost more than allowed; stepping back")
    return found, kept


def _named(of_layer: Mapping[str, Scheme]) -> str:
    counts = Counter(scheme.name for scheme in of_layer.values())
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))


def _chosen(combination: Combination, layers: Mapping[str, tuple[str, ...]]) -> tuple[Chosen, ...]:
    return tuple(
        Chosen(
            layer=" + ".join(layers[unit]),
            scheme=option.scheme,
            kl=option.loss,
            cost=option.cost,
        )
        for unit, option in combination.chosen.items()
    )
