"""Whose kernel multiplies a weight on this CPU: Ridgeline's or torch's, by a measurement.

Which is faster depends on the instructions of the CPU, on its caches and on what torch was built
with, so nothing is assumed: the first time that a format of weights is loaded, both multiply the
same matrix by 1, 8 and 64 rows in turns (a decode, a small batch, a prompt). Ridgeline's is taken
unless torch's is clearly faster over the three. What was found is kept in the user's cache folder,
so that replicas and restarts of one machine compute alike. What was found while other programs had
the cores is kept, too, since the layout of packed weights follows from it, but it is provisional:
whoever packs weights anew measures again. Without a compiler torch's is all there is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from ridgeline.errors import RidgelineError
from ridgeline.hardware.ceilings import cache_folder
from ridgeline.kernels import linear_int4, linear_int8
from ridgeline.kernels.cpu import build
from ridgeline.records.overwriting import note_kept
from ridgeline.records.store import read_record, write_record
from ridgeline.serve.messages import LinearKernel
from ridgeline.serve.weights.linears import DenseLinear, Int4Linear, Int8Linear, W8A8Linear
from ridgeline.serve.weights.torch_linears import (
    INT4_GROUPS,
    TorchInt4Linear,
    TorchInt8Linear,
    TorchW8A8Linear,
)

ROWS = (1, 8, 64)
SIDE = 2048
"""Inputs and outputs of the matrix: past most second-level caches."""
ROUNDS, MOST_SECONDS = 5, 0.1
"""Rounds of each number of rows, and the seconds after which no more begin."""
CLEARLY = 1.1
"""torch's is taken where it is so many times faster, in the geometric mean over `ROWS`."""

LEAST_SHARE = 0.8
"""Share of its time that a measurement must have had a core for, to be more than provisional."""

Kind = Literal["dense", "int8", "int4", "w8a8"]
Pair = tuple[nn.Module, nn.Module]
"""Ridgeline's layer and torch's, of the same weight."""


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored, and what they are multiplied by."""

    kind: Kind
    dtype: torch.dtype
    """The dtype of the activations as the kernel gets them, bfloat16 or float32."""
    group: int | None = None
    """Weights that share a scale, for int4."""

    @property
    def name(self) -> str:
        """The format in words for people."""
        dtype = str(self.dtype).removeprefix("torch.")
        if self.kind == "dense":
            return dtype
        if self.kind == "w8a8":
            return f"int8 with rounded {dtype} activations"
        group = f" in groups of {self.group}" if self.group else ""
        return f"{self.kind}{group} with {dtype} activations"


def kernel_for(form: Format) -> LinearKernel:
    """Whose kernel to use, measured once per machine and number of threads if both have one."""
    if form.kind == "int4" and form.group not in INT4_GROUPS:
        return only_ridgeline(form.name)
    return _kernel_for(form, torch.get_num_threads())


def settle(form: Format) -> LinearKernel:
    """Measure a provisional choice again, before weights are packed by it; what holds from now on.

    On a machine that is still busy the choice stays as it is.
    """
    threads = torch.get_num_threads()
    known = _kernel_for(form, threads)
    if not known.provisional:
        return known
    found, share = _measured(form)
    if share < LEAST_SHARE:
        return known
    _keep(form, threads, found)
    _kernel_for.cache_clear()
    return _kernel_for(form, threads)


def only_ridgeline(name: str) -> LinearKernel:
    """For what torch has no kernel for; it dequantises at every call where there is no other."""
    why = build.unavailable()
    if why is not None:
        return LinearKernel(weights=name, kernel="torch", why=f"dequantised at every call: {why}")
    return LinearKernel(weights=name, kernel="ridgeline", why="torch has none")


@functools.cache
def _kernel_for(form: Format, threads: int) -> LinearKernel:
    why = build.unavailable()
    if why is not None:
        return LinearKernel(weights=form.name, kernel="torch", why=why)
    path = _path(form, threads)
    try:
        return read_record(path, LinearKernel)
    except RidgelineError:  # not there yet, or of another release: measured again
        found, share = _measured(form)
    if share < LEAST_SHARE:
        why = "measured while other programs had the cores"
        found = replace(found, why=why, provisional=True)
    _keep(form, threads, found)
    return found


def _keep(form: Format, threads: int, found: LinearKernel) -> None:
    # A cache folder that cannot be written to costs the next start a measurement.
    path = _path(form, threads)
    note_kept(path)
    with contextlib.suppress(OSError):
        write_record(path, found)


def _share_of_a_core(wall_began: float, own_began: float) -> float:
    """How much of the time since then this thread ran."""
    return (time.thread_time() - own_began) / (time.perf_counter() - wall_began)


def _path(form: Format, threads: int) -> Path:
    """The file of what is kept; another library, torch, CPU or number of threads has another."""
    libraries = [recipe.path.name for recipe in build.wanted_recipes()]
    about = "\n".join([*libraries, torch.__version__, str(threads), str(ROWS), form.name])
    digest = hashlib.sha256(about.encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"linear-{digest}.json"


def _measured(form: Format) -> tuple[LinearKernel, float]:
    """What was found, and the share of its time that it had a core for."""
    pair = pair_of(form)
    began = time.perf_counter(), time.thread_time()
    ratios = tuple(round(_torch_over_ours(pair, form.dtype, rows), 3) for rows in ROWS)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    found = LinearKernel(
        weights=form.name,
        kernel="torch" if mean < 1 / CLEARLY else "ridgeline",
        why="measured",
        rows=ROWS,
        torch_over_ridgeline=ratios,
    )
    return found, _share_of_a_core(*began)


def pair_of(form: Format) -> Pair:
    """Both layers of a random weight [SIDE, SIDE]."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(SIDE, SIDE, generator=generator) / SIDE**0.5
    if form.kind == "dense":
        dense = nn.Linear(SIDE, SIDE, bias=False, dtype=form.dtype).requires_grad_(
            requires_grad=False
        )
        dense.weight.copy_(weight)
        return DenseLinear(dense.weight), dense
    if form.kind == "int4":
        assert form.group is not None
        levels, scales = linear_int4.quantise(weight, form.group)
        return Int4Linear(levels, scales), TorchInt4Linear(levels, scales)
    levels, scales = linear_int8.quantise(weight)
    if form.kind == "w8a8":
        return W8A8Linear(levels, scales), TorchW8A8Linear(levels, scales)
    return Int8Linear(levels, scales), TorchInt8Linear(levels, scales)


@torch.inference_mode()
def _torch_over_ours(pair: Pair, dtype: torch.dtype, rows: int) -> float:
    """Ratio of the least times, run in turns."""
    x = torch.randn(rows, SIDE).to(dtype)
    least = [math.inf, math.inf]
    began = time.perf_counter()
    for done in range(ROUNDS):
        for place, layer in enumerate(pair):
            least[place] = min(least[place], _seconds(layer, x))
        if done > 0 and time.perf_counter() - began > MOST_SECONDS:
            break
    return least[1] / least[0]


def _seconds(layer: Callable[[Tensor], Tensor], x: Tensor) -> float:
    began = time.perf_counter()
    layer(x)
    return time.perf_counter() - began
