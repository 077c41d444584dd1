"""Attention that is written out step by step, run as one kernel.

Where the matmul of queries and transposed keys stands, nothing is computed: what comes back is a
tensor in name only, which remembers what is done to it. Scaled, masked, passed through softmax and
multiplied by values it becomes one call of `scaled_dot_product_attention`, which never forms the
matrix of weights (Dao et al., "FlashAttention", 2022). Whatever else is done to it has it computed
first, as it was written.

Masks become numbers that are added: what `masked_fill` sets to -1e9 or minus infinity is left
with that much less. On a CPU a mask that is found to be causal is not read at all.

It is plain PyTorch, so that it can stand in a user's script as it stands here.
"""

import functools
import math
import sys
from typing import Any

import torch

torch_matmul = torch.matmul
MASKED_FROM = -1e4
"""A number that is filled in from this on downwards takes all weight from its place."""
LONGEST_HEAD, SHORTEST_ROW = 256, 16
"""Sizes beyond which fused attention does not exist or does not pay."""
_LOOKED_AT = ("size", "dim", "ndimension", "numel", "element_size", "is_floating_point", "__get__")
_SAME = ("to", "float", "type_as", "contiguous")


class WaitingScores(torch.Tensor):
    """Queries times keys, not computed yet, and what was done to them so far."""

    queries: Any
    keys: Any
    factor: float
    bias: Any
    blocked: Any
    """The one boolean mask that was filled in, where nothing else was."""
    weighted: bool
    """Did they pass through softmax?"""
    dropped: float
    """The share of weights that the kernel is to drop."""
    may_drop: bool
    spent: bool
    """A kernel has drawn which ones."""
    computed: Any
    fused: Any
    """Called where a kernel took all of it; or None."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _LOOKED_AT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        found = args[0] if args and isinstance(args[0], WaitingScores) else None
        if found is not None and found.computed is None:
            answer = _remembered(found, name.strip("_"), args[1:], kwargs)
            if answer is not None:
                if name.endswith("_") and not name.endswith("__"):
                    found.__dict__.update(answer.__dict__)  # in place
                    return found
                return answer
        return func(*(_computed(a) for a in args), **{k: _computed(v) for k, v in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """For what reaches a tensor without asking the class first."""
        others = {key: _computed(value) for key, value in (kwargs or {}).items()}
        return func(*(_computed(value) for value in args), **others)


def waiting(queries: Any, keys: Any, fused: Any = None, may_drop: bool = False) -> Any:
    """Scores of [..., T, d] queries and [..., d, S] transposed keys that are not computed yet."""
    shape = (*queries.shape[:-1], keys.shape[-1])
    device, dtype = queries.device, queries.dtype
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    scores = torch.Tensor._make_wrapper_subclass(WaitingScores, shape, dtype=dtype, device=device)
    scores.queries, scores.keys, scores.factor, scores.fused = queries, keys, 1.0, fused
    scores.bias = scores.blocked = scores.computed = None
    scores.weighted, scores.may_drop, scores.dropped, scores.spent = False, may_drop, 0.0, False
    return scores


def can_wait(queries: Any, keys: Any) -> bool:
    """Do two matrices look like queries and transposed keys that a fused kernel takes?"""
    return (
        isinstance(queries, torch.Tensor)
        and isinstance(keys, torch.Tensor)
        and not isinstance(queries, WaitingScores)
        and not isinstance(keys, WaitingScores)
        and queries.dim() == keys.dim()
        and queries.dim() in (3, 4)
        and queries.shape[:-2] == keys.shape[:-2]
        and queries.shape[-1] == keys.shape[-2] <= LONGEST_HEAD
        and min(queries.shape[-2], keys.shape[-1]) >= SHORTEST_ROW
        and queries.is_floating_point()
        and (queries.dtype == keys.dtype or torch.is_autocast_enabled(queries.device.type))
    )


def _changed(scores: Any, **changes: Any) -> Any:
    after = waiting(scores.queries, scores.keys)
    after.__dict__.update({**scores.__dict__, **changes})
    return after


def _remembered(scores: Any, name: str, args: Any, kwargs: Any) -> Any:
    """The scores after one more step, or the matmul with values; None: compute them first."""
    if name in ("matmul", "bmm") and scores.weighted and len(args) == 1 and not kwargs:
        return _attended(scores, args[0])
    if name in _SAME and _is_same(scores, name, args, kwargs):
        return scores
    if name == "dropout":
        return _dropped(scores, *args, **kwargs)
    if scores.weighted:
        return None
    if name in ("mul", "rmul", "imul", "multiply") and len(args) == 1 and not kwargs:
        return _scaled(scores, _number(args[0]))
    if name in ("div", "truediv", "itruediv", "true_divide") and len(args) == 1 and not kwargs:
        divisor = _number(args[0])
        return _scaled(scores, 1 / divisor if divisor else None)
    if name == "masked_fill" and len(args) == 2 and not kwargs:
        return _filled(scores, args[0], _number(args[1]))
    if name in ("add", "radd", "iadd") and len(args) == 1 and not kwargs:
        return _biased(scores, args[0])
    if name == "softmax":
        dim = kwargs.get("dim", args[0] if args else None)
        other = kwargs.get("dtype", next((a for a in args[1:] if isinstance(a, torch.dtype)), None))
        if dim in (-1, scores.dim() - 1) and other in (None, scores.dtype):
            return _changed(scores, weighted=True)
    return None


def _dropped(scores: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0:
        return scores
    can = scores.may_drop and scores.weighted and not scores.dropped and not inplace
    return _changed(scores, dropped=p) if can else None


def _is_same(scores: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Would a conversion change nothing?"""
    if name == "float":
        return bool(scores.dtype == torch.float32)
    if name == "contiguous":
        return not args and not kwargs
    other = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(other, torch.Tensor):
        return bool(other.dtype == scores.dtype and other.device == scores.device)
    return bool(name == "to" and other in (scores.dtype, scores.device))


def _number(value: Any) -> Any:
    """A Python number, also from a tensor that holds one on the host; None: something else."""
    if isinstance(value, torch.Tensor):
        plain = value.numel() == 1 and value.dim() < 2 and not value.requires_grad
        return value.item() if plain and value.device.type == "cpu" else None
    return value if isinstance(value, (int, float)) else None


def _scaled(scores: Any, factor: Any) -> Any:
    if factor is None or scores.bias is not None:
        return None
    return _changed(scores, factor=scores.factor * factor)


def _fits(scores: Any, mask: Any) -> bool:
    """Can it be added to the scores without making them larger or learning from it?"""
    return (
        isinstance(mask, torch.Tensor)
        and not isinstance(mask, WaitingScores)
        and not mask.requires_grad
        and mask.dim() <= scores.dim()
        and mask.device == scores.device
        and all(
            m in (1, s) for m, s in zip(reversed(mask.shape), reversed(scores.shape), strict=False)
        )
    )


def _filled(scores: Any, mask: Any, value: Any) -> Any:
    if value is None or value > MASKED_FROM or not _fits(scores, mask) or mask.dtype != torch.bool:
        return None
    least = max(value, torch.finfo(scores.dtype).min) if math.isfinite(value) else value
    added = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device)
    added = added.masked_fill(mask, least)
    first = scores.bias is None
    return _changed(
        scores,
        bias=added if first else scores.bias + added,
        blocked=mask if first else None,
    )


def _biased(scores: Any, bias: Any) -> Any:
    if not _fits(scores, bias) or bias.dtype not in (scores.dtype, scores.queries.dtype):
        return None
    total = bias if scores.bias is None else scores.bias + bias
    return _changed(scores, bias=total, blocked=None)


def _attended(scores: Any, values: Any) -> Any:
    """All of it as one kernel."""
    if not can_wait(scores.queries, scores.keys) or values.dim() != scores.dim():
        return None
    if values.shape[:-2] != scores.shape[:-2]:
        return None
    if values.dtype != scores.dtype and not torch.is_autocast_enabled(values.device.type):
        return None
    queries, keys, bias = scores.queries, scores.keys.transpose(-2, -1), scores.bias
    causal = bias is not None and scores.blocked is not None and _is_causal(scores.blocked)
    if causal:
        bias = None
    if bias is not None and bias.dim() > 2 and scores.dim() == 3:
        bias = bias.unsqueeze(1)
    if scores.dim() == 3:
        queries, keys, values = (one.unsqueeze(1) for one in (queries, keys, values))
    result = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, bias, scores.dropped, is_causal=causal, scale=scores.factor
    )
    scores.spent = True
    if scores.fused is not None:
        scores.fused()
    return result.squeeze(1) if scores.dim() == 3 else result


def _is_causal(blocked: Any) -> bool:
    """Does one mask for all block what comes after each place, and nothing else?

    On a CPU alone: to ask a GPU is to wait for it.
    """
    side = blocked.shape[-1]
    if blocked.device.type != "cpu" or blocked.dim() < 2 or blocked.numel() != side * side:
        return False
    later = torch.ones(side, side, dtype=torch.bool).triu(1)
    return torch.equal(blocked.reshape(side, side), later) if blocked.shape[-2] == side else False


def _computed(value: Any) -> Any:
    """Scores as they were written; anything else as it is."""
    if isinstance(value, (tuple, list)) and any(isinstance(one, WaitingScores) for one in value):
        return type(value)(_computed(one) for one in value)
    if not isinstance(value, WaitingScores):
        return value
    if value.dropped and value.spent:
        raise RuntimeError("which attention weights were dropped is known to the kernel alone")
    if value.computed is None:
        scores = torch_matmul(value.queries, value.keys)
        if value.factor != 1:
            scores = scores * value.factor
        if value.bias is not None:
            scores = scores + value.bias
        weights = scores.softmax(-1) if value.weighted else scores
        value.computed = (
            torch.nn.functional.dropout(weights, value.dropped) if value.dropped else weights
        )
    return value.computed


def makes_scores_wait(
    original: Any, file: str, function: str, fused: Any = None, may_drop: bool = False
) -> Any:
    """A matmul that waits where a function of this name in this file calls it.

    With `may_drop` the kernel draws which weights are dropped: others than the script would draw.
    """
    is_there = functools.cache(
        lambda code: code.co_name == function and code.co_filename.endswith(file)
    )

    @functools.wraps(original)
    def product(first: Any, second: Any, *rest: Any, **others: Any) -> Any:
        if rest or others or torch.compiler.is_compiling():
            return original(first, second, *rest, **others)
        if is_there(sys._getframe(1).f_code) and can_wait(first, second):
            return waiting(first, second, fused, may_drop)
        return original(first, second)

    @functools.wraps(original)
    def einsum(equation: Any, *operands: Any) -> Any:
        if len(operands) != 2 or torch.compiler.is_compiling():
            return original(equation, *operands)
        if isinstance(operands[0], WaitingScores):
            return _summed_over_keys(original, equation, *operands)
        if is_there(sys._getframe(1).f_code):
            matrices = _as_matrices(equation, *operands)
            if matrices is not None and can_wait(*matrices):
                return waiting(matrices[0], matrices[1], fused, may_drop)
        return original(equation, *operands)

    return einsum if original.__name__ == "einsum" else product


def _letters(equation: Any, *operands: Any) -> Any:
    """The letters of two operands and the result, one per dimension; None: otherwise."""
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return None
    inputs, result = equation.replace(" ", "").split("->")
    parts = [*inputs.split(","), result]
    plain = len(parts) == 3 and all(len(set(part)) == len(part) for part in parts)
    if not plain or len({*map(len, parts), *(one.dim() for one in operands)}) != 1:
        return None
    return parts


def _as_matrices(equation: Any, first: Any, second: Any) -> Any:
    """Queries and transposed keys of a sum that gives [..., T, S] scores; None: another sum."""
    parts = _letters(equation, first, second)
    if parts is None or len(parts[2]) < 3:
        return None
    a, b, result = parts
    batch, row, column = result[:-2], result[-2], result[-1]
    summed = [letter for letter in a if letter in b and letter not in result]
    if len(summed) != 1 or {*batch, row, *summed} != set(a) or {*batch, column, *summed} != set(b):
        return None
    return (
        first.permute([a.index(letter) for letter in (*batch, row, *summed)]),
        second.permute([b.index(letter) for letter in (*batch, *summed, column)]),
    )


def _summed_over_keys(original: Any, equation: Any, scores: Any, values: Any) -> Any:
    """A sum of weights times values over the keys is a matmul."""
    parts = _letters(equation, scores, values)
    if parts is None or not isinstance(values, torch.Tensor):
        return original(equation, _computed(scores), _computed(values))
    a, b, result = parts
    batch, row, column = a[:-2], a[-2], a[-1]
    width = [letter for letter in b if letter not in a]
    if len(width) != 1 or {*batch, column, *width} != set(b) or {*batch, row, *width} != {*result}:
        return original(equation, _computed(scores), _computed(values))
    order = (*batch, row, *width)
    product = scores @ values.permute([b.index(letter) for letter in (*batch, column, *width)])
    return product.permute([order.index(letter) for letter in result])
