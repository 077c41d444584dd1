"""Slices gathered at once are those that were cut one by one, whatever array and indices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.gathered_slices import gathered_slices

INDICES = {
    "tensor": torch.tensor,
    "array": np.array,
    "list": list,
    "range": lambda indices: range(len(indices)),
}


def cut(stack, array, indices, ends, convert=lambda part: part):
    return stack([convert(array[slice(*ends(i))]) for i in indices])


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 9),
    indices=st.lists(st.integers(0, 90), min_size=1, max_size=12),
    offset=st.integers(0, 1),
    kind=st.sampled_from(sorted(INDICES)),
    further=st.booleans(),
)
def test_what_is_gathered_is_what_was_cut(length, indices, offset, kind, further):
    array = torch.randn((100, 3) if further else (100,))
    chosen = INDICES[kind](indices)

    def ends(i):
        return i + offset, i + offset + length

    assert torch.equal(
        gathered_slices(torch.stack, array, chosen, ends), cut(torch.stack, array, chosen, ends)
    )
    words = (1000 * array.abs()).numpy().astype(np.uint16)
    for stack, convert in (
        (torch.stack, lambda part: torch.from_numpy(part.astype(np.int64))),
        (np.stack, lambda part: part),
    ):
        found = gathered_slices(stack, words, chosen, ends, convert)
        wanted = cut(stack, words, chosen, ends, convert)
        assert type(found) is type(wanted)
        assert found.dtype == wanted.dtype
        assert (found == wanted).all()


def test_what_is_read_from_a_mapped_file_is_an_array_in_memory(tmp_path):
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "words.bin")
    words = np.memmap(tmp_path / "words.bin", dtype=np.uint16, mode="r")
    indices = torch.randint(900, (16,))
    found = gathered_slices(np.stack, words, indices, lambda i: (i, i + 64))
    assert type(found) is np.ndarray
    assert (found == cut(np.stack, words, indices, lambda i: (i, i + 64))).all()


@pytest.mark.parametrize(
    ("indices", "ends"),
    [
        ([3, 98], lambda i: (i, i + 5)),
        ([-4, -2], lambda i: (i, i + 2)),
        ([1, 2], lambda i: (i, 2 * i)),
        ([], lambda i: (i, i + 2)),
    ],
    ids=["beyond the end", "from the end", "of two lengths", "none"],
)
def test_slices_that_do_not_fit_together_fail_or_answer_as_before(indices, ends):
    array = torch.arange(100)
    outcomes = []
    for how in (gathered_slices, cut):
        try:
            outcomes.append(how(torch.stack, array, indices, ends).tolist())
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_an_iterator_of_indices_is_not_used_up():
    indices = iter([4, 7])
    found = gathered_slices(torch.stack, torch.arange(30), indices, lambda i: (i, i + 2))
    assert found.tolist() == [[4, 5], [7, 8]]


def test_gradients_flow_to_an_array_that_is_trained():
    array = torch.randn(20, requires_grad=True)
    gathered_slices(torch.stack, array, [1, 2], lambda i: (i, i + 2)).sum().backward()
    assert array.grad is not None
    assert array.grad.tolist()[:5] == [0.0, 1.0, 2.0, 1.0, 0.0]
