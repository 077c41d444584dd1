"""Random words against the known answers that Random123 publishes, and dropout made of them."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels.philox import kept_weights, philox

ALL = 0xFFFFFFFF
KNOWN = {
    "zeros": ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((ALL,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_words_are_the_known_answers_of_random123(case: str) -> None:
    counter, seed, wanted = KNOWN[case]
    found = philox(tuple(torch.tensor(word) for word in counter), seed)
    assert tuple(int(word) for word in found) == wanted


def test_a_share_of_weights_is_dropped_and_no_place_decides_for_another() -> None:
    rows, keys = torch.arange(96), torch.arange(96)
    kept = kept_weights(0.25, 9, torch.arange(2), rows, keys).double()
    assert abs(float(kept.mean()) - 0.75) < 0.01
    spread = kept - kept.mean()
    for neighbour in (spread.roll(1, 0), spread.roll(1, 1), spread.roll(1, 2)):
        assert abs(float((spread * neighbour).mean())) < 0.009
    assert not torch.equal(kept, kept_weights(0.25, 10, torch.arange(2), rows, keys).double())


def test_a_place_is_decided_alike_in_any_tile() -> None:
    rows, keys, heads = torch.arange(40), torch.arange(30), torch.arange(3)
    whole = kept_weights(0.5, 2**40 + 3, heads, rows, keys)
    part = kept_weights(0.5, 2**40 + 3, heads[2:], rows[7:20], keys[11:])
    assert torch.equal(whole[2:, 7:20, 11:], part)
