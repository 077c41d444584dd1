"""A layout that does not fit its model is refused before anything starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeCommunication,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
)
from ridgeline.records.recipe_compression import RecipeAdapter
from ridgeline.train.check import check

DENSE = "layers=6,hidden=96,heads=12,kv_heads=4,vocab=1000"


def recipe_of(model: str, *, seq: int = 128, adapter: bool = False, **layout: Any) -> Recipe:
    layout.setdefault("global_batch", 64)
    return Recipe(
        model=RecipeModel(config=model),
        data=RecipeData(path="none", seq=seq),
        layout=Layout(**layout),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
        adapter=RecipeAdapter() if adapter else None,
    )


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        (DENSE, {"tp": 8}, "tp 8 does not divide the 12 attention heads"),
        (DENSE, {"tp": 6}, "tp 6 does not divide the 4 key-value heads"),
        (DENSE, {"pp": 4, "vpp": 2}, "pp x vpp = 4 x 2 stages of a model of 6 layers"),
        (DENSE, {"vpp": 2}, "set vpp = 1"),
        (DENSE, {"cp": 2, "seq": 130}, "does not divide into 2 x cp = 4 chunks"),
        (DENSE, {"tp": 4, "sp": True, "seq": 130}, "sequences of 130 tokens over tp 4"),
        (DENSE, {"tp": 2, "adapter": True}, r"with \[adapter\], use tp = 1"),
        (DENSE, {"ep": 2, "dp": 2}, "has no experts"),
        (DENSE, {"dp": 4, "fsdp": 4}, "zero is 0, which shards nothing"),
        (DENSE, {"dp": 4, "zero": 3}, "over fsdp = 1 ranks"),
        (DENSE, {"dp": 4, "cp": 2, "fsdp": 1, "zero": 1}, "over fsdp = 1 ranks"),
        (
            DENSE,
            {"dp": 6, "cp": 2, "fsdp": 3, "zero": 1, "global_batch": 6},
            "not a multiple of cp",
        ),
        ("mixtral-8x7b", {"dp": 3, "ep": 3, "global_batch": 3}, "ep 3 does not divide the 8"),
        ("mixtral-8x7b", {"ep": 2}, "does not divide dp x cp = 1"),
        ("mixtral-8x7b", {"tp": 4, "etp": 2}, r"over the tp ranks \(4\) or not at all"),
        ("mixtral-8x7b", {"tp": 2, "etp": 2, "dp": 2, "ep": 2}, "not both"),
        ("gpt2", {"seq": 2048}, "has embeddings of 1024 positions only"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_cure(
    model: str, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check(recipe_of(model, **layout))


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (DENSE, {}),
        (DENSE, {"zero": 3}),
        (DENSE, {"dp": 4, "fsdp": 2, "zero": 3, "tp": 4, "sp": True, "pp": 2, "cp": 2}),
        ("mixtral-8x7b", {"dp": 8, "ep": 8, "tp": 2}),
        ("mixtral-8x7b", {"tp": 2, "etp": 2}),
        ("gpt2", {"seq": 1024, "dp": 2}),
    ],
)
def test_what_fits_passes(model: str, layout: dict[str, Any]) -> None:
    check(recipe_of(model, **layout))


def test_checking_loads_no_torch() -> None:
    code = "import sys, ridgeline.train.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_mpi_is_refused_with_what_to_do_and_nccl_without_a_gpu_too() -> None:
    with pytest.raises(InputError, match=r'communication\.backend "mpi".* use nccl or gloo'):
        RecipeCommunication(backend="mpi")
    from ridgeline.train.ranks import join

    with pytest.raises(InputError, match="ranks compute on CPUs here; leave it out"):
        join(Layout(), backend="nccl")
