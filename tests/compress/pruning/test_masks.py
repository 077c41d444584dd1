"""Which weights go: exact counts, whatever the numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.compress.pruning.ahead import shares_by_layer
from ridgeline.compress.pruning.weights import NEEDS, prune
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_blocks, keep_largest, keep_n_of_m, keep_share
from ridgeline.records.scheme import Criterion, Pruning

CRITERIA: tuple[Criterion, ...] = ("magnitude", "wanda", "sparsegpt", "taylor", "random")
few_levels = st.integers(0, 2**31 - 1)


def matrix(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(dtype)


def seen_of(
    columns: int, seed: int, tokens: int = 300, scales: Tensor | None = None
) -> CalibrationStatistics:
    """Inputs that are correlated, as real ones are."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(tokens, columns, generator=generator)
    mixed @= torch.randn(columns, columns, generator=generator) / columns**0.5
    x = mixed if scales is None else mixed * scales
    return CalibrationStatistics(
        num_tokens=tokens,
        hessian=2.0 / tokens * x.T @ x,
        square_norm=x.square().sum(dim=0),
    )


def pruned(
    criterion: Criterion, weight: Tensor, seen: CalibrationStatistics, **wanted: object
) -> Tensor:
    pruning = Pruning(criterion=criterion, **{"share": 0.5, **wanted})
    return prune(weight, pruning, seen, importance=weight.float().square()).weight


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 24),
    levels=st.integers(1, 4),
    share=st.floats(0, 0.99),
    seed=few_levels,
)
@settings(max_examples=60, deadline=None)
def test_exactly_the_share_goes_and_nothing_that_stays_is_smaller(
    rows: int, columns: int, levels: int, share: float, seed: int
) -> None:
    scores = matrix(rows, columns, seed).abs().mul(levels).round()  # many are equal
    stays = keep_share(scores, share)
    assert int((~stays).sum()) == round(share * scores.numel())
    if bool(stays.any()) and not bool(stays.all()):
        assert scores[stays].min() >= scores[~stays].max()


@given(
    n_of_m=st.sampled_from([(1, 2), (2, 4), (1, 4), (4, 8), (3, 4)]),
    groups=st.integers(1, 6),
    rows=st.integers(1, 5),
    criterion=st.sampled_from(CRITERIA),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=few_levels,
)
@settings(max_examples=80, deadline=None)
def test_of_every_m_at_most_n_stay(
    n_of_m: tuple[int, int],
    groups: int,
    rows: int,
    criterion: Criterion,
    dtype: torch.dtype,
    seed: int,
) -> None:
    n, m = n_of_m
    weight = matrix(rows, groups * m, seed, dtype)
    found = pruned(criterion, weight, seen_of(groups * m, seed), pattern=n_of_m)
    assert found.dtype == dtype
    assert int((found.unflatten(1, (-1, m)) != 0).sum(dim=-1).max()) <= n


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_share_is_met_to_a_weight(criterion: Criterion) -> None:
    weight = matrix(20, 40, 1)
    found = pruned(criterion, weight, seen_of(40, 2), share=0.3)
    assert int((found == 0).sum()) == round(0.3 * 800)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_depth_that_m_does_not_divide_is_refused(criterion: Criterion) -> None:
    with pytest.raises(InputError, match="groups of 4"):
        pruned(criterion, matrix(4, 10, 0), seen_of(10, 0), pattern=(2, 4))


def test_what_is_no_pattern_no_share_or_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="no pattern"):
        keep_n_of_m(torch.ones(2, 4), 4, 4)
    with pytest.raises(InputError, match="share"):
        prune(torch.ones(2, 4), Pruning(criterion="magnitude", share=1.0))
    with pytest.raises(InputError, match="infinite or NaN"):
        prune(torch.tensor([[1.0, torch.nan]]), Pruning(criterion="magnitude", share=0.5))


def test_wanda_compares_within_a_row_and_by_what_flows_in() -> None:
    weight = torch.tensor([[10.0, 1.0, 2.0, 3.0], [100.0, 400.0, 300.0, 200.0]])
    seen = CalibrationStatistics(
        num_tokens=1, square_norm=torch.tensor([0.0001, 100.0, 100.0, 1.0])
    )
    found = pruned("wanda", weight, seen)
    assert found.tolist() == [[0.0, 1.0, 2.0, 0.0], [0.0, 400.0, 300.0, 0.0]]


@pytest.mark.parametrize("wanted", [{"share": 0.5}, {"pattern": (2, 4)}])
def test_sparsegpt_loses_less_than_wanda_and_wanda_less_than_magnitude(
    wanted: dict[str, object],
) -> None:
    scales = torch.logspace(-0.5, 0.5, 64)[
        torch.randperm(64, generator=torch.Generator().manual_seed(3))
    ]
    weight, seen = matrix(48, 64, 4), seen_of(64, 5, scales=scales)
    errors = [
        prune(weight, Pruning(criterion=criterion, **{"share": 0.5, **wanted}), seen).error
        for criterion in ("magnitude", "wanda", "sparsegpt")
    ]
    assert errors[0] > 1.5 * errors[1] > 1.5 * 1.2 * errors[2]


def test_sparsegpt_is_the_best_repair_of_its_last_block() -> None:
    # One block and one row: what stays must be the least squares answer given the mask, but for
    # the damping and the columns to the left, which SparseGPT never touches again.
    weight, seen = matrix(1, 6, 7), seen_of(6, 8, tokens=4000)
    from ridgeline.compress.pruning import sparsegpt
    from ridgeline.compress.watching.statistics import inverse_factor

    assert seen.hessian is not None
    factor, _ = inverse_factor(seen.hessian, damping=1e-6)
    assert factor is not None
    small = weight.clone()
    small[0, 0] = 1e-3  # the first column goes, so every other one may make up for it
    found = sparsegpt.prune(small, Pruning(criterion="sparsegpt", share=1 / 6), factor)
    assert found[0, 0] == 0.0
    hessian = seen.hessian
    best = torch.linalg.solve(hessian[1:, 1:], (small @ hessian)[0, 1:])
    torch.testing.assert_close(found[0, 1:], best, rtol=1e-3, atol=1e-4)


def test_inputs_that_were_never_seen_and_repeat_each_other_end_in_no_error() -> None:
    for seed in range(20):
        x = matrix(3, 16, seed)  # three tokens for sixteen inputs
        x[:, 5] = 0.0
        hessian = 2 / 3 * x.T @ x
        found = prune(
            matrix(8, 16, seed + 100),
            Pruning(criterion="sparsegpt", share=0.5),
            CalibrationStatistics(num_tokens=3, hessian=hessian),
        )
        assert bool(found.weight.isfinite().all())
        assert bool((found.weight[:, 5] == 0).all())
        assert int((found.weight == 0).sum()) == 64


@pytest.mark.parametrize("criterion", ["wanda", "sparsegpt"])
def test_an_expert_that_no_token_reached_is_pruned_by_magnitude(criterion: Criterion) -> None:
    weight = matrix(4, 8, 0)
    found = prune(
        weight, Pruning(criterion=criterion, share=0.5), CalibrationStatistics(num_tokens=0)
    )
    assert torch.equal(
        found.weight, prune(weight, Pruning(criterion="magnitude", share=0.5)).weight
    )
    assert found.notices == ("calibration never reached it: pruned by magnitude",)


def test_a_hessian_that_is_no_number_falls_back_and_says_so() -> None:
    hessian = torch.full((8, 8), torch.nan)
    found = prune(
        matrix(4, 8, 0),
        Pruning(criterion="sparsegpt", share=0.5),
        CalibrationStatistics(num_tokens=3, hessian=hessian),
    )
    assert int((found.weight == 0).sum()) == 16
    assert any("Wanda" in notice for notice in found.notices)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    share=st.floats(0, 0.5),
    seed=few_levels,
)
@settings(max_examples=60, deadline=None)
def test_one_share_over_all_layers_is_what_sorting_all_weights_gives(
    sizes: list[int], share: float, seed: int
) -> None:
    scores = {
        str(place): matrix(2, size, seed + place).abs().bfloat16().float() + 0.25 * place
        for place, size in enumerate(sizes)
    }
    removed = round(share * sum(one.numel() for one in scores.values()))
    together = torch.cat([one.flatten() for one in scores.values()])
    stays = keep_largest(together, removed).split([one.numel() for one in scores.values()])
    expected = {name: int((~one).sum()) for name, one in zip(scores, stays, strict=True)}
    if any(expected[name] == one.numel() for name, one in scores.items()):
        with pytest.raises(InputError, match="every weight"):
            shares_by_layer(scores.items, share)
        return
    found = shares_by_layer(scores.items, share)
    assert {n: round(found[n] * one.numel()) for n, one in scores.items()} == expected


def test_every_criterion_says_what_it_has_to_see() -> None:
    assert set(NEEDS) == set(CRITERIA)


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    block=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    share=st.floats(0.0, 0.99),
    seed=few_levels,
)
def test_blocks_go_whole_and_so_many_as_asked(
    shape: tuple[int, int], block: tuple[int, int], share: float, seed: int
) -> None:
    scores = matrix(*shape, seed).abs()
    mask = keep_blocks(scores, share, *block)
    gone, means, count = 0, [], 0
    for row in range(0, shape[0], block[0]):
        for column in range(0, shape[1], block[1]):
            tile = (slice(row, row + block[0]), slice(column, column + block[1]))
            kept = mask[tile]
            assert kept.all() or not kept.any()
            gone += not bool(kept.any())
            means.append((float(scores[tile].mean()), bool(kept.any())))
            count += 1
    assert gone == round(share * count)
    most_gone = max((mean for mean, kept in means if not kept), default=0.0)
    least_kept = min((mean for mean, kept in means if kept), default=1e9)
    assert most_gone <= least_kept * (1 + 1e-5) + 1e-6


def test_chance_draws_the_same_weights_at_every_call_and_others_in_another_layer() -> None:
    first, second = matrix(32, 48, 1), matrix(32, 48, 2)
    seen = seen_of(48, 3)
    once, again = (pruned("random", first, seen) for _ in range(2))
    assert torch.equal(once, again)
    other = pruned("random", second, seen)
    assert not torch.equal(once == 0, other == 0)
    assert int((once == 0).sum()) == 32 * 48 // 2
    # Chance costs more than magnitude does.
    kept = pruned("magnitude", first, seen)
    assert (first - once).norm() > 1.5 * (first - kept).norm()


@pytest.mark.parametrize("criterion", ["magnitude", "wanda", "taylor", "random"])
def test_every_criterion_ranks_blocks(criterion: Criterion) -> None:
    weight = matrix(32, 48, 5)
    found = pruned(criterion, weight, seen_of(48, 6), block=(8, 16), share=0.25)
    tiles = found.view(4, 8, 3, 16).ne(0).float().mean(dim=(1, 3))
    assert sorted(tiles.flatten().tolist()) == [0.0] * 3 + [1.0] * 9
