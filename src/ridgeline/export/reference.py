"""The eager model in float32: what it answers, what it is made of, and whether it is right.

The digest names the computation: every operator that PyTorch dispatches in one forward pass, with
its shapes and numbers, every parameter and buffer, the modules' settings and code (which may take
another branch where they are exported), and what int8 takes its ranges from.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.errors import InputError, in_words
from ridgeline.export import orders
from ridgeline.export.check_inputs import CheckCase, arguments, read_check_inputs
from ridgeline.export.dead_answers import dead_answers
from ridgeline.export.model_source import load_model
from ridgeline.measure.higher_order import is_higher_order, run_inside
from ridgeline.records.runtime_export import Likeness
from ridgeline.runtimes.capture.structure import UnknownStructure, flatten

_MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "slice", "select",
    "unsqueeze", "squeeze", "detach", "alias", "as_strided", "split", "chunk", "unbind",
    "split_with_sizes", "empty", "lift_fresh",
})  # fmt: skip
"""Operators that compute nothing: other shapes of the same numbers."""

_PLAIN = (int, float, str, bool, type(None), tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What other processes read of it."""

    cases: list[CheckCase]
    outputs: list[list[Any]]
    """What each call of each case answers."""
    labels: Tensor | None
    calibration: list[dict[str, Tensor]]

    def top1(self, chosen: Sequence[Tensor]) -> float | None:
        """Share of labelled inputs that are right; None without labels, or without a choice."""
        if self.labels is None or not chosen:
            return None
        found = torch.cat(list(chosen))
        return float((found == self.labels[: len(found)]).double().mean())


def make_reference(order: orders.ModelOrder) -> orders.ReferenceAnswer:
    """Run the model on the check's inputs, and write both down.

    Raises:
        InputError: Model or inputs cannot be used.
    """
    torch.set_num_threads(order.threads)
    weights = None if order.weights is None else Path(order.weights)
    model = load_model(order.source, weights)
    inputs = read_check_inputs(
        Path(order.check),
        model.module,
        model.preprocess,
        image_size=order.image_size,
        calibrate=order.calibrate,
    )
    kept: list[CheckCase] = []
    outputs: list[list[Any]] = []
    likeness: list[Likeness] = []
    made_of: tuple[str, dict[str, int]] = ("", {})
    for case in inputs.cases:
        found = _run(model.module, case, first=not kept)
        if isinstance(found, str):
            likeness.append(Likeness(batch=case.batch, size=case.size, fixed=found))
            continue
        if not kept:  # before another batch leaves something behind in a model that keeps state
            made_of = _digest(model.module, case, inputs.calibration)
        kept.append(case)
        outputs.append(found)
        count = sum(len(next(iter(call.values()))) for call in case.calls)
        likeness.append(Likeness(batch=case.batch, size=case.size, inputs=count))
    chosen, notes = _choices(kept, outputs, inputs.labels)
    labels = None if chosen is None else inputs.labels
    reference = Reference(
        cases=kept, outputs=outputs, labels=labels, calibration=inputs.calibration
    )
    torch.save(reference, Path(order.folder) / orders.REFERENCE)
    digest, operators = made_of
    return orders.ReferenceAnswer(
        inputs=max(one.inputs for one in likeness),
        notes=[*model.notes, *inputs.notes, *notes, *dead_answers(kept[0], outputs[0])],
        digest=digest,
        operators=operators,
        top1=None if chosen is None else reference.top1([chosen]),
        likeness=likeness,
    )


def read_reference(folder: Path) -> Reference:
    """What `make_reference` left, in another process of this job."""
    # Our own file of this job: it holds whatever classes the model answers in.
    found: Reference = torch.load(folder / orders.REFERENCE, weights_only=False)
    return found


def _run(module: nn.Module, case: CheckCase, *, first: bool) -> list[Any] | str:
    """What each call answers; a line where the model takes no such size."""
    found = []
    try:
        with torch.inference_mode():
            for call in case.calls:
                args, kwargs = arguments(call)
                found.append(_plain(module(*args, **kwargs)))
    except Exception as error:  # a model raises what it likes
        said = f"{type(error).__name__}: {in_words(error)}"
        if first:
            size = " × ".join(map(str, case.size))
            raise InputError(
                f"the model fails in PyTorch itself at batch {case.batch}, {size} ({said}); give"
                " inputs of the shape that it takes, or --image-size"
            ) from error
        return f"the model itself does not take it ({said[:120]})"
    return found


def _plain(value: Any) -> Any:
    """Only what other processes can read: objects of the script's own classes become lists."""
    try:
        tensors, _ = flatten(value)
    except UnknownStructure as error:
        raise InputError(
            f"forward returns a {error}, which cannot be compared; return tensors, or lists,"
            " tuples, dicts or dataclasses of them"
        ) from None
    kinds = (Tensor, dict, list, tuple)
    return value if type(value) in kinds else tensors


def _choices(
    cases: list[CheckCase], outputs: list[list[Any]], labels: Tensor | None
) -> tuple[Tensor | None, list[str]]:
    """What the model chooses at the first size, where labels can be held against it."""
    if labels is None:
        return None, ["no labels: agreement with eager float32 is judged, not accuracy"]
    at = [place for place, case in enumerate(cases) if case.size == cases[0].size]
    most = max(at, key=lambda place: len(cases[place].calls) * cases[place].batch)
    logits = [one for one in outputs[most] if isinstance(one, Tensor) and one.ndim == 2]
    if len(logits) != len(outputs[most]):
        return None, ["labels are not used: the model does not answer [batch, classes]"]
    chosen = torch.cat([one.argmax(1) for one in logits])
    classes = logits[0].shape[1]
    if int(labels.max()) >= classes:
        return None, [f"labels are not used: up to {int(labels.max())}, of {classes} classes"]
    return chosen, []


# -- what it is made of --------------------------------------------------------------------------


def _digest(
    module: nn.Module, case: CheckCase, calibration: list[dict[str, Tensor]]
) -> tuple[str, dict[str, int]]:
    args, kwargs = arguments(case.calls[0])
    with torch.no_grad(), _Operators() as seen:
        module(*args, **kwargs)
    digest = hashlib.sha256("\n".join([*seen.lines, *_settings(module)]).encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    for call in calibration:
        for name, tensor in call.items():
            digest.update(name.encode() + _bytes(tensor))
    return digest.hexdigest(), dict(seen.counts.most_common())


def _settings(module: nn.Module) -> list[str]:
    """Classes, their plain attributes and their code: forward may look at these when exported."""
    lines, files = [], {}
    for path, part in module.named_modules():
        plain = {key: one for key, one in vars(part).items() if type(one) in _PLAIN}
        lines.append(f"{path} {type(part).__module__}.{type(part).__qualname__} {plain}")
        file = getattr(sys.modules.get(type(part).__module__), "__file__", None)
        if file is not None and file not in files:
            files[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return [*lines, *sorted(files.values())]


def _bytes(tensor: Tensor) -> bytes:
    found: bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


class _Operators(TorchDispatchMode):
    """Every operator of a pass in order, and how many of each kind compute something."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_higher_order(func):
            return run_inside(self, func, args, kwargs or {})
        said = [self._said(one) for one in (*args, *(kwargs or {}).items())]
        self.lines.append(f"{func} {said}")
        name = func._schema.name.removeprefix("aten::")
        if name not in _MOVES:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))

    def _said(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return str([self._said(one) for one in value])
        return repr(value)
