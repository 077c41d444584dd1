"""Single formulas of the cost model against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.collectives import (
    all_reduce_seconds,
    bus_rate,
    dispatch_seconds,
    gather_seconds,
    group_of,
    send_seconds,
)
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.matmuls import alignment, utilisation
from ridgeline.cost.training.setting import Setting, setting_of
from ridgeline.cost.training.step import bubble_seconds
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models.presets import preset
from ridgeline.records.layout import Layout


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


@pytest.fixture(scope="module")
def setting() -> Setting:
    """64 H100 with collectives at line rate and no latency."""
    shares = {"bf16": 0.7}
    perfect = Coefficients(
        gemm=shares, domain=1.0, network=1.0, congestion=0.0, all_to_all=1.0, bulk_latency=0.0
    )
    layouts = stack_layouts([Layout(dp=64, global_batch=64)])
    place = parse_cluster("64xH100")
    return setting_of(preset("Llama-3-8B"), place, Workload(seq=4096), layouts, perfect)


def test_a_ring_all_reduce_moves_twice_n_minus_1_over_n(setting: Setting) -> None:
    """Thakur et al. 2005, section 4.5: 2·(n-1)/n of the buffer through every link."""
    group = group_of(setting, one(8), one(1))
    seconds = all_reduce_seconds(setting, one(1e9), group)[0]
    assert seconds == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert gather_seconds(setting, one(1e9), group)[0] == pytest.approx(seconds / 2)


def test_a_group_inside_a_mesh_has_no_use_of_the_links_to_others(setting: Setting) -> None:
    """Of seven links a pair has one; a pipeline's neighbours, too."""
    mesh = replace(setting, site=replace(setting.site, linked_peers=one(7)))
    pair, whole = group_of(mesh, one(2), one(1)), group_of(mesh, one(8), one(1))
    assert bus_rate(mesh, whole)[0] == 450e9
    assert bus_rate(mesh, pair)[0] == pytest.approx(450e9 / 7)
    assert send_seconds(mesh, one(1e9), one(0))[0] == pytest.approx(7e9 / 450e9, rel=1e-3)


def test_a_group_over_nodes_leaves_each_through_the_cards_of_its_members(
    setting: Setting,
) -> None:
    all_cards = group_of(setting, one(64), one(1))
    assert (all_cards.local[0], all_cards.nodes[0]) == (8, 8)
    one_card = group_of(setting, one(8), one(8))
    assert (one_card.local[0], one_card.nodes[0]) == (1, 8)
    wide = gather_seconds(setting, one(1e9), all_cards)[0]
    narrow = gather_seconds(setting, one(1e9), one_card)[0]
    assert wide == pytest.approx(63 / 64 * 1e9 / 400e9)
    assert narrow == pytest.approx(7 / 8 * 1e9 / 50e9)


def test_half_of_an_all_to_all_over_two_nodes_crosses_the_network(setting: Setting) -> None:
    """Eight copies to experts that are spread evenly: four of them to the other node."""
    group = group_of(setting, one(16), one(1))
    seconds = dispatch_seconds(setting, one(1e9), one(8), group)[0]
    latency = setting.site.domain_latency_seconds[0] + setting.site.network_latency_seconds[0]
    assert seconds == pytest.approx(1e9 * 4 / 50e9 + latency)


def test_a_hierarchical_dispatch_crosses_once_per_node_that_has_an_expert(
    setting: Setting,
) -> None:
    """DeepSeek-V3 (arXiv 2412.19437), section 3.2.2; 45 of 50 GB/s as DeepEP's README states."""
    tiered = replace(setting.software, hierarchical_dispatch=np.ones(1, dtype=bool))
    group = group_of(setting, one(16), one(1))
    seconds = dispatch_seconds(replace(setting, software=tiered), one(1e9), one(8), group)[0]
    crossings = 1 - 0.5**8
    latency = setting.site.domain_latency_seconds[0] + setting.site.network_latency_seconds[0]
    assert seconds == pytest.approx(1e9 * crossings / 45e9 + latency)


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_utilisation_is_a_share(rows: int, columns: int) -> None:
    share = utilisation(one(rows), one(columns), 1.0, one(132))[0]
    assert 0 < share <= 1


def test_one_tile_too_many_costs_a_wave() -> None:
    """132 tiles of 128 x 256 fill an H100 once; 133 need a second wave."""
    full = utilisation(one(128 * 132), one(256), 1.0, one(132))[0]
    spilled = utilisation(one(128 * 133), one(256), 1.0, one(132))[0]
    assert full == 1.0
    assert spilled < 0.9


def test_sizes_off_128_bytes_are_penalised_once_and_odd_ones_more() -> None:
    penalty = one(0.2)
    assert alignment(one(1024), 2.0, penalty)[0] == 1.0
    assert alignment(one(1800), 2.0, penalty)[0] == pytest.approx(0.8)
    assert alignment(one(1801), 2.0, penalty)[0] == pytest.approx(0.8**3)


@given(st.integers(2, 16), st.integers(1, 4), st.integers(1, 64))
def test_the_bubble_is_p_minus_1_over_v_m(stages: int, chunks: int, micro: int) -> None:
    """Narayanan et al., arXiv 2104.04473, section 2.2.2: (p-1)/(v·m) of the ideal time."""
    layouts = stack_layouts([Layout(pp=stages, vpp=chunks, global_batch=micro)])
    layers = one(stages * chunks)
    waiting = bubble_seconds(layouts, layers, one(1.0), one(0.0))[0]
    assert waiting / micro == pytest.approx((stages - 1) / (chunks * micro))


def test_the_stage_with_the_odd_layer_sets_the_pace() -> None:
    layouts = stack_layouts([Layout(pp=2, global_batch=8)])
    even = bubble_seconds(layouts, one(4), one(2.0), one(0.0))[0]
    odd = bubble_seconds(layouts, one(5), one(2.5), one(0.0))[0]
    assert even == pytest.approx(2.0)
    assert odd == pytest.approx(2.5 + 8 * 0.5)


def test_a_collective_between_two_matmuls_passes_both_kinds_of_links_in_turn(
    setting: Setting,
) -> None:
    whole, inside = one(1e9), group_of(setting, one(8), one(1))
    across = group_of(setting, one(16), one(1))
    alone = all_reduce_seconds(setting, whole, across, serial=True)
    site = setting.site
    fast = 1.0 / site.domain_bytes_per_second
    slow = 1.0 / (8.0 * site.network_bytes_per_second)
    assert alone == pytest.approx(2.0 * 15.0 / 16.0 * 1e9 * (fast + np.maximum(fast, slow)))
    assert alone > all_reduce_seconds(setting, whole, across)
    within = [all_reduce_seconds(setting, whole, inside, serial=one) for one in (False, True)]
    assert within[0] == within[1]
