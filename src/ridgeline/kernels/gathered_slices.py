"""A batch of equally long slices of one array, gathered at once.

A slice costs some microseconds in Python, several where its ends are tensors: a batch of 64 takes
as long as the step of a small model. Where all slices have one length and lie within the array,
their positions are made with two tensors and looked up in one call; any others are cut as before.

It is plain PyTorch and numpy, so that it can stand in a user's script as it stands here.
"""

from typing import Any

import numpy as np
import torch


def gathered_slices(stack: Any, array: Any, indices: Any, ends: Any, convert: Any = None) -> Any:
    """`stack([convert(array[slice(*ends(i))]) for i in indices])`, looked up in one call.

    Args:
        stack: `torch.stack`, `np.stack` or `np.array`.
        array: The tensor or array that is sliced along its first dimension.
        indices: One for each slice.
        ends: A function from an index (or from all) to where its slice begins and where it ends.
        convert: What is done to each slice, or to all of them.
    """
    positions = _positions(array, indices, ends)
    if positions is None:
        slices = (array[slice(*ends(i))] for i in indices)
        return stack([one if convert is None else convert(one) for one in slices])
    if isinstance(array, torch.Tensor):
        batch = array[positions.to(array.device)]
    else:
        batch = np.asarray(array)[positions.numpy()]
    return batch if convert is None else convert(batch)


def _positions(array: Any, indices: Any, ends: Any) -> Any:
    """Where the elements of every slice lie; None unless all are of one length and within."""
    if isinstance(array, torch.Tensor):
        plain = array.layout is torch.strided and not array.requires_grad
    else:
        plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    if not plain or not isinstance(indices, (torch.Tensor, np.ndarray, list, tuple, range)):
        return None
    which = torch.as_tensor(indices)
    if which.dim() != 1 or len(which) == 0 or which.is_floating_point() or which.is_complex():
        return None
    which = which.to("cpu", torch.int64)
    first, last = ends(which)
    lengths = last - first
    length = int(lengths[0])
    if int(lengths.min()) != length or int(lengths.max()) != length:
        return None
    if int(first.min()) < 0 or int(last.max()) > len(array) or length <= 0:
        return None
    return first.unsqueeze(1) + torch.arange(length)
