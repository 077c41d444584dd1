"""AdamW over many tensors in one launch against float64 and against `torch.optim.AdamW`."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import assert_rounded_once, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.adamw import adamw_reference, adamw_step

SHAPES = [(3,), (17, 40), (1,), (0, 4), (129, 130), (5, 7, 3)]
SETTINGS = {"learning_rate": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


def lists(device, dtype=torch.float32, moments=torch.float32):
    made = {"device": device}
    parameters, gradients = (
        [random(*shape, dtype=dtype, seed=seed, **made) for shape in SHAPES] for seed in (0, 1)
    )
    means = [random(*shape, dtype=moments, seed=2, **made) / 10 for shape in SHAPES]
    squares = [random(*shape, dtype=moments, seed=3, **made).square() for shape in SHAPES]
    return parameters, gradients, means, squares


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    ("dtype", "moments"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.float16, torch.float16),
    ],
    ids=str,
)
def test_a_step_is_that_of_float64(device, dtype, moments, step):
    given = lists(device, dtype, moments)
    scale = torch.tensor(0.25, device=device)
    wanted = [
        adamw_reference(
            tuple(one.double() for one in tensors),
            scale.double(),
            1e-2,
            0.9,
            0.999,
            1e-8,
            0.1,
            step,
        )
        for tensors in zip(*given, strict=True)
    ]
    gradients = [one.clone() for one in given[1]]
    adamw_step(*given, **SETTINGS, step=step, gradient_scale=scale)
    assert all(torch.equal(a, b) for a, b in zip(gradients, given[1], strict=True))
    for number, kind in ((0, 0), (2, 1), (3, 2)):
        for found, exact in zip(given[number], (one[kind] for one in wanted), strict=True):
            if found.numel() > 3:
                assert_rounded_once(found, exact, f"{number} {tuple(found.shape)}")


def test_five_steps_are_those_of_torch(device):
    given = lists(device)
    theirs = [one.clone().requires_grad_() for one in given[0]]
    optimizer = torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1, foreach=False)
    means, squares = ([torch.zeros_like(one) for one in given[0]] for _ in "ms")
    for step in range(1, 6):
        gradients = [
            random(*one.shape, dtype=one.dtype, device=device, seed=step) for one in theirs
        ]
        for one, gradient in zip(theirs, gradients, strict=True):
            one.grad = gradient
        optimizer.step()
        adamw_step(given[0], gradients, means, squares, **SETTINGS, step=step)
    for ours, other in zip(given[0], theirs, strict=True):
        torch.testing.assert_close(ours, other.detach(), rtol=2e-6, atol=2e-6)


def test_transposed_parameters_and_expanded_gradients_are_read_as_they_lie(device):
    made = {"dtype": torch.float32, "device": device}
    parameter = random(9, 5, **made).t()
    straight = parameter.contiguous()
    gradient = torch.full((), 0.5, device=device).expand(5, 9)
    for one in (parameter, straight):
        mean, square = torch.zeros_like(one), torch.zeros_like(one)
        adamw_step([one], [gradient], [mean], [square], **SETTINGS, step=1)
    assert torch.equal(parameter, straight)


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
def test_all_tensors_are_one_interpreter_launch_and_each_byte_is_touched_once(device, monkeypatch):
    from tests.kernels.triton.memory import watched

    from ridgeline.kernels.triton import adamw as kernel

    launches, real = [], kernel.step_kernel

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return real[grid]

    monkeypatch.setattr(kernel, "step_kernel", Counted())
    given = lists(device)
    with watched() as traffic:
        adamw_step(*given, **SETTINGS, step=3)
    assert len(launches) == 1
    elements = sum(one.numel() for one in given[0])
    table = 6 * 8 * sum(bool(one.numel()) for one in given[0])
    assert traffic.unique_bytes == 7 * 4 * elements + table
    assert traffic.bytes_stored_twice == 0


def test_torch_checks_the_operator_and_compiles_it_whole(device):
    given = lists(device)
    numbers = (None, 1e-2, 0.9, 0.999, 1e-8, 0.1, 2)
    torch.library.opcheck(torch.ops.ridgeline.adamw_step.default, (*given, *numbers))
    copies = [[one.clone() for one in kind] for kind in given]
    compiled = torch.compile(adamw_step, fullgraph=True, backend="aot_eager")
    compiled(*copies, **SETTINGS, step=2)
    adamw_step(*given, **SETTINGS, step=2)
    assert all(torch.equal(a, b) for a, b in zip(copies[0], given[0], strict=True))


def test_what_does_not_fit_is_refused(device):
    one = torch.ones(4, device=device)
    with pytest.raises(InputError, match="give one length"):
        adamw_step([one], [], [one], [one], **SETTINGS, step=1)
    with pytest.raises(InputError, match="give one shape and one layout"):
        adamw_step([one], [one[:2]], [one], [one], **SETTINGS, step=1)
    with pytest.raises(InputError, match="at step 0"):
        adamw_step([one], [one], [one], [one], **SETTINGS, step=0)
