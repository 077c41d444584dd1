"""Products by compressed rows: torch's own answers and gradients, whatever is done to a matrix."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.compressed_rows import CompressedRows, by_compressed_rows


def sparse(rows: int, columns: int, places: int, dtype: torch.dtype = torch.float64):
    where = torch.stack([torch.randint(rows, (places,)), torch.randint(columns, (places,))])
    return torch.sparse_coo_tensor(
        where, torch.randn(places, dtype=dtype), (rows, columns), check_invariants=True
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.integers(0, 90), st.booleans())
def test_values_and_gradients_are_those_of_the_dense_product(rows, columns, width, places, whole):
    torch.manual_seed(0)
    matrix = sparse(rows, columns, places)
    matrix = matrix.coalesce() if whole else matrix
    product = by_compressed_rows(torch.spmm, CompressedRows())
    for _ in range(3):
        x = torch.randn(columns, width, dtype=torch.float64, requires_grad=True)
        found, wanted = product(matrix, x), matrix.to_dense() @ x
        torch.testing.assert_close(found, wanted)
        (ours,) = torch.autograd.grad(found.square().sum(), x)
        (dense,) = torch.autograd.grad(wanted.square().sum(), x)
        torch.testing.assert_close(ours, dense)


def test_second_derivatives_are_right():
    torch.manual_seed(0)
    matrix = sparse(7, 5, 12)
    product = by_compressed_rows(torch.mm, CompressedRows())
    product(matrix, torch.zeros(5, 3, dtype=torch.float64))
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: product(matrix, x).pow(3), (x,))


def test_a_matrix_that_is_changed_in_place_is_compressed_anew():
    torch.manual_seed(0)
    matrix, x = sparse(20, 20, 60), torch.randn(20, 4, dtype=torch.float64)
    product = by_compressed_rows(torch.spmm, CompressedRows())
    for _ in range(4):
        for _ in range(3):
            torch.testing.assert_close(product(matrix, x), matrix.to_dense() @ x)
        matrix._values().mul_(-2)


def test_only_what_comes_again_is_compressed_and_nothing_outlives_its_matrix():
    known, taken = CompressedRows(), []
    product = by_compressed_rows(torch.spmm, known, lambda: taken.append(1))
    x = torch.randn(20, 4, dtype=torch.float64)
    for _ in range(5):
        product(sparse(20, 20, 60), x)
    gc.collect()
    assert taken == []
    assert known._known == {}


@pytest.mark.parametrize("trained", [False, True])
def test_dense_matrices_and_matrices_that_are_trained_are_left_to_torch(trained):
    torch.manual_seed(0)
    taken: list[int] = []
    matrix = sparse(8, 8, 20)
    matrix = matrix.requires_grad_() if trained else matrix.to_dense()
    product = by_compressed_rows(torch.matmul, CompressedRows(), lambda: taken.append(1))
    x = torch.randn(8, 3, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(product(matrix, x), torch.matmul(matrix, x))
    assert taken == []


def test_under_autocast_the_answer_has_the_format_that_torch_gives_it():
    torch.manual_seed(0)
    matrix, x = sparse(30, 30, 90, torch.float32), torch.randn(30, 4)
    product = by_compressed_rows(torch.spmm, CompressedRows())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [product(matrix, x) for _ in range(3)]
    exact = (matrix.to_dense() @ x).to(torch.bfloat16)
    assert [one.dtype for one in found] == [torch.bfloat16] * 3
    torch.testing.assert_close(found[-1], exact)
