"""What flows into the matmuls of a block with its weights, seen below the modules and gathered.

`torch.nn.functional.linear`, `addmm` (GPT-2), and `@` are met whatever kind of module calls them;
which weight it is tells the address of its memory. Keys and values are met where torch computes
attention (`scaled_dot_product_attention`), after rotary embeddings, with the block compressed
already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ridgeline.checkpoints.layers import Matrix
from ridgeline.checkpoints.quantised import ActivationScales
from ridgeline.compress.activations import activation_scales
from ridgeline.compress.heap import give_back
from ridgeline.compress.watching.attention import KEYS_AND_VALUES
from ridgeline.compress.watching.lanes import num_lanes, side_by_side
from ridgeline.compress.watching.matmuls import BATCHED, PLACES, own_rows, weights_met
from ridgeline.compress.watching.statistics import CalibrationStatistics, add_inputs, mirror
from ridgeline.records.scheme import NumberFormat

Matmul = tuple[Matrix, ...]
"""The matrices of one matmul: several where a model keeps them stacked (an expert's gate, up)."""


class Stop(Exception):
    """What was wanted has been seen; nothing after it is needed."""


class MatmulMode(TorchFunctionMode):
    """Calls `before(matmul, x)` with the activations of each, which may return others.

    `after(matmul, y)` gets the outputs.
    """

    def __init__(
        self,
        matrices: Iterable[Matrix],
        before: Callable[[Matmul, Tensor], Tensor | None],
        after: Callable[[Matmul, Tensor], None] | None = None,
    ) -> None:
        super().__init__()
        by_slice: dict[int, list[Matrix]] = {}
        for matrix in matrices:
            by_slice.setdefault(matrix.slice_pointer, []).append(matrix)
        self._matmuls = {pointer: tuple(found) for pointer, found in by_slice.items()}
        self._before = before
        self._after = after

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of each of its functions."""
        del types
        kwargs = kwargs or {}
        if func in BATCHED:
            return self._batched(func, args, kwargs)
        places = PLACES.get(func)
        matmul = None
        if places is not None and len(args) > max(places) and isinstance(args[places[1]], Tensor):
            matmul = self._matmuls.get(args[places[1]].data_ptr())
        if matmul is None or places is None:
            return self._other(func, args, kwargs)
        replaced = self._before(matmul, args[places[0]])
        if replaced is not None:
            args = (*args[: places[0]], replaced, *args[places[0] + 1 :])
        result = func(*args, **kwargs)
        if self._after is not None:
            self._after(matmul, result)
        return result

    def _batched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A matmul for each expert of a batched one."""
        met = {
            number: self._matmuls[pointer]
            for number, pointer in enumerate(weights_met(func, args))
            if pointer in self._matmuls
        }
        for number, matmul in met.items():
            given = args[0][number]
            rows = own_rows(given)
            replaced = self._before(matmul, given[rows])
            if replaced is not None:
                changed = args[0].clone()
                changed[number, rows] = replaced
                args = (changed, *args[1:])
        result = self._other(func, args, kwargs)
        if self._after is not None:
            for number, matmul in met.items():
                self._after(matmul, result[number])
        return result

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


class Origins(MatmulMode):
    """Also follows which tensor an input is: a view, a choice of rows of it, is still the same."""

    def __init__(self, matrices: Iterable[Matrix]) -> None:
        super().__init__(matrices, self._note)
        self.inputs: list[tuple[Matmul, int]] = []
        """Each matmul with the number of the tensor that flowed into it, in order."""
        self.same_rows: dict[Matmul, int] = {}
        """Of each matmul, a number that is equal where the very same tensor flows in."""
        # Weak, so that what flows through the block is freed as usual.
        self._origin: Any = WeakTensorKeyDictionary()
        self._tensor: Any = WeakTensorKeyDictionary()
        self._numbers = count()

    def number(self, tensor: Tensor) -> int:
        """A number that all views and rows of one tensor have in common."""
        if tensor not in self._origin:
            self._origin[tensor] = next(self._numbers)
        found: int = self._origin[tensor]
        return found

    def _note(self, matmul: Matmul, x: Tensor) -> None:
        self.inputs.append((matmul, self.number(x)))
        if x not in self._tensor:
            self._tensor[x] = next(self._numbers)
        self.same_rows[matmul] = self._tensor[x]

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        source = args[0] if args else None
        if (
            isinstance(result, Tensor)
            and isinstance(source, Tensor)
            and getattr(func, "__name__", "") in _SAME
            and result is not source
            and result.ndim
            and source.ndim
            and result.shape[-1] == source.shape[-1]
        ):
            self._origin[result] = self.number(source)
        return result


_SAME = frozenset(
    {
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand"),
        *("contiguous", "to", "float", "type_as", "detach", "dropout"),
        *("__getitem__", "index_select"),
    }
)
"""What changes no value along the last dimension."""


def run_with(mode: TorchFunctionMode, forward: Callable[[], Any]) -> Any:
    """Run under a mode; None where it was stopped."""
    try:
        with torch.no_grad(), mode:
            return forward()
    except Stop:
        return None


def module_outputs(block: nn.Module, seen: Callable[[nn.Module, Tensor], None]) -> list[Any]:
    """Hooks on every module of a block; `seen(module, output)`. The caller removes them."""

    def hook(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen(module, output)

    return [module.register_forward_hook(hook) for module in block.modules()]


SAMPLE_ROWS = 512
"""Rows of inputs that are kept at least, where that many came; below twice as many."""


PARTS = 4
"""Parts of all chunks, after each of which freed memory is given back to the system."""


class Gatherer:
    """Sums over the inputs of one layer, chunk by chunk.

    Args:
        wanted: Fields of `CalibrationStatistics`.
    """

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._sums: dict[str, Tensor] = {}
        self._tokens = 0
        self._rows: list[Tensor] = []
        self._stride = 1

    def add(self, x: Tensor) -> None:
        """Add activations [..., in], as they are multiplied: in bfloat16 where matmuls are."""
        lowered = torch.is_autocast_enabled("cpu")
        seen = x.to(torch.get_autocast_dtype("cpu")) if lowered else x
        flat = seen.detach().reshape(-1, x.shape[-1])
        if not len(flat):
            return
        if "rows" in self._wanted:
            self._sample(flat)
        self._tokens += len(flat)
        # Products want many rows at once; of what else is summed a float32 copy would be large.
        size = len(flat) if "hessian" in self._wanted else SAMPLE_ROWS
        for part in flat.split(size) if self._wanted - {"rows"} else ():
            self._sum(part)

    def _sum(self, flat: Tensor) -> None:
        if "hessian" in self._wanted:
            if "hessian" not in self._sums:
                self._sums["hessian"] = torch.zeros(flat.shape[1], flat.shape[1])
            add_inputs(self._sums["hessian"], flat)
        if not self._wanted - {"rows", "hessian"}:
            return
        flat = flat.float()
        if "square_norm" in self._wanted:
            self._add("square_norm", flat.square().sum(0))
        if "mean_abs" in self._wanted:
            self._add("mean_abs", flat.abs().sum(0))
        if "max_abs" in self._wanted:
            largest = flat.abs().amax(0)
            before = self._sums.get("max_abs", largest)
            self._sums["max_abs"] = torch.maximum(before, largest)

    def seen(self) -> CalibrationStatistics:
        """The statistics of all that was added; nothing can be added after that."""
        found: dict[str, Any] = dict(self._sums)
        count = max(self._tokens, 1)
        if "hessian" in found:
            # In place: it is the largest of all.
            mirror(found["hessian"]).mul_(2.0 / count)
        if "mean_abs" in found:
            found["mean_abs"] = found["mean_abs"] / count
        if self._rows:
            found["rows"] = torch.cat(self._rows)
        return CalibrationStatistics(num_tokens=self._tokens, **found)

    def join(self, other: Gatherer) -> None:
        """Add all that another one has seen, which is of no use afterwards."""
        self._tokens += other._tokens
        for name, values in other._sums.items():
            if name == "max_abs" and name in self._sums:
                torch.maximum(self._sums[name], values, out=self._sums[name])
            elif name in self._sums:
                self._sums[name].add_(values)
            else:
                self._sums[name] = values
        other._sums.clear()
        while self._stride != other._stride:
            min(self, other, key=lambda one: one._stride)._halve()
        self._rows += other._rows
        self._thin()

    def _add(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums[name] + values if name in self._sums else values

    def _sample(self, flat: Tensor) -> None:
        """Every `stride`-th token of all, the stride doubled once too many are kept."""
        first = -self._tokens % self._stride
        self._rows.append(flat[first :: self._stride].to(torch.float32, copy=True))
        self._thin()

    def _thin(self) -> None:
        while sum(map(len, self._rows)) >= 2 * SAMPLE_ROWS:
            self._halve()

    def _halve(self) -> None:
        self._rows = [torch.cat(self._rows)[::2].clone()] if self._rows else []
        self._stride *= 2


def gather(
    runs: Sequence[Callable[[], Any]],
    matrices: Iterable[Matrix],
    wanted: Mapping[Matmul, tuple[int, frozenset[str]]],
) -> dict[int, CalibrationStatistics]:
    """Run the block and watch its matmuls, in as many lanes as torch has threads for.

    Args:
        runs: Forward passes of the block, one per chunk; they may run side by side.
        matrices: Of the block.
        wanted: By matmul: the number of the statistics (the same for matmuls that get the same
            tensor, which is then looked at once), and what is asked for.

    Returns:
        Statistics by number.
    """
    fields: dict[int, frozenset[str]] = {}
    looking: dict[Matmul, int] = {}
    for matmul, (number, asked) in wanted.items():
        if number not in fields:
            looking[matmul] = number  # the first of those that get the same tensor, for all
        fields[number] = fields.get(number, frozenset()) | asked
    watched = tuple(matrices)
    lanes = num_lanes()
    of_lane = [{number: Gatherer(asked) for number, asked in fields.items()} for _ in range(lanes)]

    def look(lane: int, run: Callable[[], Any]) -> None:
        left = set(looking)

        def before(matmul: Matmul, x: Tensor) -> None:
            if matmul in looking:
                of_lane[lane][looking[matmul]].add(x)
            left.discard(matmul)
            if not left:
                raise Stop

        run_with(MatmulMode(watched, before), run)

    # What passes hold at a stop lies among what they have freed, which is of other sizes than what
    # they need next; so less of that is kept.
    # A lane's chunks stay its own: all parts begin with one of the first lane.
    part = lanes * max(1, -(-len(runs) // (lanes * PARTS)))
    for start in range(0, len(runs), part):
        if start:
            give_back()
        side_by_side(look, runs[start : start + part])
    gatherers, *others = of_lane
    for number, gatherer in gatherers.items():
        for other in others:
            gatherer.join(other.pop(number))
    return {number: gatherer.seen() for number, gatherer in gatherers.items()}


class _Attention(MatmulMode):
    """Notes the largest key and value of each attention layer."""

    def __init__(self, matrices: Iterable[Matrix]) -> None:
        super().__init__(matrices, self._enter)
        self.largest: dict[str, tuple[Tensor, Tensor]] = {}
        self._layer = ""

    def _enter(self, matmul: Matmul, _: Tensor) -> None:
        """Attention comes after the matmuls of its own module."""
        self._layer = matmul[0].name.rpartition(".")[0]

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in KEYS_AND_VALUES:
            most = args[1].abs().amax().reshape(1), args[2].abs().amax().reshape(1)
            before = self.largest.get(self._layer, most)
            self.largest[self._layer] = (
                torch.maximum(before[0], most[0]),
                torch.maximum(before[1], most[1]),
            )
        return func(*args, **kwargs)


def cache_of(
    runs: Iterable[Callable[[], Any]], matrices: Iterable[Matrix], form: NumberFormat
) -> dict[str, tuple[ActivationScales, ActivationScales]]:
    """By attention layer, what its keys and values are rounded to."""
    watch = _Attention(matrices)
    for run in runs:
        run_with(watch, run)
    found = {}
    for layer, both in watch.largest.items():
        keys, values = (
            activation_scales(form, CalibrationStatistics(num_tokens=1, max_abs=most))
            for most in both
        )
        assert keys is not None
        assert values is not None
        found[layer] = (keys, values)
    return found
