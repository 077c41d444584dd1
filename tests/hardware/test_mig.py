"""How GPUs are cut by MIG, against the tables and figures of NVIDIA's guide."""

from __future__ import annotations

import re

import pytest

from ridgeline.hardware import device
from ridgeline.hardware.mig import MigGeometry, mig_devices, mig_geometry

INSTANCES = {
    "A100-SXM-40GB": {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1,
                      "7g.40gb": 1},
    "A30": {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1},
    "H100-SXM-80GB": {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1,
                      "7g.80gb": 1},
    "H200-SXM-141GB": {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1,
                       "7g.141gb": 1},
    "B200": {"1g.23gb": 7, "1g.45gb": 4, "2g.45gb": 3, "3g.90gb": 2, "4g.90gb": 1,
             "7g.180gb": 1},
    "B300": {"1g.34gb": 7, "1g.67gb": 4, "2g.67gb": 3, "3g.135gb": 2, "4g.135gb": 1,
             "7g.269gb": 1},
    "GB200": {"1g.23gb": 7, "1g.47gb": 4, "2g.47gb": 3, "3g.93gb": 2, "4g.93gb": 1,
              "7g.186gb": 1},
    "GB300": {"1g.35gb": 7, "1g.70gb": 4, "2g.70gb": 3, "3g.139gb": 2, "4g.139gb": 1,
              "7g.278gb": 1},
    "GH200-96GB": {"1g.12gb": 7, "1g.24gb": 4, "2g.24gb": 3, "3g.48gb": 2, "4g.48gb": 1,
                   "7g.96gb": 1},
    "RTX-PRO-6000-Server": {"1g.24gb": 4, "2g.48gb": 2, "4g.96gb": 1},
}  # fmt: skip
"""The column "number of instances available"."""


def geometry(name: str) -> MigGeometry:
    found = mig_geometry(device(name))
    assert found is not None
    return found


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("name", INSTANCES)
def test_as_many_instances_of_a_profile_fit_as_the_guide_says(name: str) -> None:
    cut = geometry(name)
    most = {
        profile.name: max(one.count(place) for one in cut.cuts())
        for place, profile in enumerate(cut.profiles)
    }
    assert most == INSTANCES[name]


def test_an_a100_has_the_nineteen_configurations_of_the_guide_s_figure() -> None:
    """The figure has none with the later 1g profile of two memory slices."""
    cut = geometry("a100-sxm-40gb")
    plain = [
        one
        for one in cut.layouts()
        if all(cut.profiles[place].name != "1g.10gb" for _, place in one)
    ]
    assert len(plain) == 19
    assert len(geometry("a30").layouts()) == 5


@pytest.mark.parametrize("name", mig_devices())
def test_profiles_are_a_chain_whose_names_say_what_they_have(name: str) -> None:
    cut = geometry(name)
    for small, large in zip(cut.slices, cut.slices[1:], strict=False):
        assert small.memory_bytes <= large.memory_bytes
        assert small.compute_share <= large.compute_share
    for profile, one in zip(cut.profiles, cut.slices, strict=True):
        compute, gigabytes = map(int, re.fullmatch(r"(\d)g\.(\d+)gb", one.name).groups())  # type: ignore[union-attr]
        assert compute == profile.compute
        assert 0.85 * gigabytes * 1e9 <= one.memory_bytes <= 1.08 * gigabytes * 1e9
        assert 0 < one.compute_share <= 1
        assert max(profile.starts) + profile.memory <= cut.memory_slices
