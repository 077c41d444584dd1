"""What a call of forward leaves behind in Python, which an exported graph does not do.

A counter on the module, the features of the frame before, a list that a hook appends to, a global:
an export runs forward once, and bakes in what it saw. So these are read before and after, put
back, and a change is an error.
Buffers and inputs that are written to are seen in the graph itself.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from ridgeline.runtimes.capture.sources import _rank

_PLAIN = (int, float, str, bool, type(None))
_SIZED = (list, dict, set)
_OWN = frozenset({
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks",
    "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl",
})  # fmt: skip
"""What nn.Module itself keeps."""

_LRU_CACHE = type(functools.lru_cache(lambda: None))
_GLOBAL = "global "
_ABSENT = object()


class StateSnapshot:
    """The Python state around a module's forward, as it is now."""

    def __init__(self, module: nn.Module) -> None:
        self._holders = list(_holders(module))
        self._values = [
            {key: _reading(value) for key, value in holder.items() if _is_state(key, value)}
            for _, holder in self._holders
        ]

    def changed(self, *, rewritten: bool = True) -> list[str]:
        """What has changed since, in words.

        Args:
            rewritten: Count containers too in which each tensor has been put in another's place.
        """
        return list(
            dict.fromkeys(
                name + key
                for name, holder, key, before in self._changes()
                if before is _ABSENT
                or not _holds_the_same(_reading(holder[key]), before, rewritten=not rewritten)
            )
        )

    def take_back(self, *, rewritten: bool = True) -> list[str]:
        """Put back what has changed since; returns what that was, in words, as `changed` does.

        torch.export itself leaves copies of the containers on a module: they go without a word.
        """
        changed = self.changed(rewritten=rewritten)
        for name, holder, key, before in list(self._changes()):
            if before is _ABSENT:
                if name != _GLOBAL:
                    del holder[key]
            else:
                _restore(holder, key, before)
        return changed

    def _changes(self) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
        """Label, holder and key of what is another now, and what it was."""
        for (name, holder), before in zip(self._holders, self._values, strict=True):
            now = dict(holder.items())
            for key, old in before.items():
                if key in now and not _same(_reading(now[key]), old):
                    yield name, holder, key, old
            for key, value in now.items():
                if key not in before and _is_state(key, value):
                    yield name, holder, key, _ABSENT


def answers_from_its_input_alone(
    call: Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]],
    example: list[torch.Tensor],
    fresh: StateSnapshot,
) -> bool:
    """Whether a call answers the same after another input as it does when nothing was kept.

    So what it keeps is for itself: activations that hooks hand to a decoder, say, and no memory of
    the frame before. The state is left as a call leaves it.
    """
    other = [one.flip(-1) * 0.5 if one.is_floating_point() else one for one in example]
    if not any(one.is_floating_point() for one in example):
        return False
    try:
        call(other)
        later = call(example)
        fresh.take_back()
        first = call(example)
    except Exception:  # whatever forward raises on an input that it was not given
        return False
    return all(
        one.shape == two.shape and torch.allclose(one, two, equal_nan=True)
        for one, two in zip(first, later, strict=True)
    )


def _holders(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Dictionaries in which forward, or a hook, may keep something."""
    seen: set[int] = set()
    for path, part in module.named_modules():
        label = "self." if not path else f"{path}."
        yield label, vars(part)
        functions = [type(part).forward]
        functions += [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        for function in functions:
            yield from _around(function, seen)


def _around(function: Callable[..., Any], seen: set[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The globals that a function of the user's names, and the cells that it closes over."""
    plain = getattr(function, "__func__", function)
    if isinstance(plain, functools.partial):
        plain = plain.func
    if not isinstance(plain, FunctionType) or id(plain) in seen:
        return
    seen.add(id(plain))
    if _rank(plain.__code__.co_filename) < 2:
        return
    names = plain.__code__.co_names
    yield _GLOBAL, _Named(plain.__globals__, names)
    cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=False)
    filled = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    yield f"{plain.__qualname__}'s ", filled


class _Named(dict[str, Any]):
    """Some of a module's globals; what is put back goes to the module."""

    def __init__(self, globals_: dict[str, Any], names: tuple[str, ...]) -> None:
        super().__init__({name: globals_[name] for name in names if name in globals_})
        self.globals, self.names = globals_, names

    def items(self) -> Any:
        return [(name, self.globals[name]) for name in self.names if name in self.globals]

    def __getitem__(self, key: str) -> Any:
        return self.globals[key]

    def __contains__(self, key: object) -> bool:
        return key in self.globals

    def __setitem__(self, key: str, value: Any) -> None:
        self.globals[key] = value


def _is_filled(cell: Any) -> bool:
    try:
        return bool(cell.cell_contents is not cell)
    except ValueError:
        return False


def _is_state(key: str, value: Any) -> bool:
    known = type(value) in _PLAIN or type(value) in _SIZED or isinstance(value, torch.Tensor)
    return key not in _OWN and known


def _reading(value: Any) -> Any:
    """A value, or of what can grow a shallow copy, with the thing itself."""
    return (value, value.copy()) if type(value) in _SIZED else value


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, tuple) and isinstance(before, tuple):
        return now[0] is before[0] and _holds_the_same(now, before)
    if isinstance(now, torch.Tensor):
        return now is before
    return type(now) is type(before) and (now is before or now == before)


def _holds_the_same(now: Any, before: Any, *, rewritten: bool = False) -> bool:
    """Whether two readings are of the same elements, though in another container.

    With `rewritten`, a tensor where a tensor was is the same.
    """
    if not (isinstance(now, tuple) and isinstance(before, tuple)):
        tensors = isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor)
        return (rewritten and tensors) or _same(now, before)
    if type(now[1]) is not type(before[1]) or len(now[1]) != len(before[1]):
        return False
    if isinstance(now[1], set):
        return bool(now[1] == before[1])
    leaves, structure = tree_flatten(now[1])
    others, expected = tree_flatten(before[1])
    return structure == expected and all(
        one is other
        or (type(one) in _PLAIN and type(one) is type(other) and one == other)
        or (rewritten and isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor))
        for one, other in zip(leaves, others, strict=True)
    )


def _restore(holder: Any, key: str, before: Any) -> None:
    if not isinstance(before, tuple):
        holder[key] = before
        return
    thing, content = before
    thing.clear()
    thing.extend(content) if isinstance(thing, list) else thing.update(content)
    holder[key] = thing


def forget_cached_shapes() -> list[str]:
    """Empty every `lru_cache` that now holds tensors without data; returns their names.

    A tensor that a cached function made while forward was traced has a shape and no numbers, and
    the next call of the module would get it.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    emptied = []
    for cached in [o for o in gc.get_objects() if type(o) is _LRU_CACHE]:
        code = getattr(getattr(cached, "__wrapped__", None), "__code__", None)
        if code is None or _rank(code.co_filename) == 0 or not cached.cache_info().currsize:
            continue
        if _holds(cached, FakeTensor):
            cached.cache_clear()
            name = getattr(cached, "__qualname__", "a cached function")
            emptied.append(f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})")
    return emptied


def _holds(cached: Any, kind: type) -> bool:
    """Does a cache keep a value of this type, by itself or in a tuple, list or mapping?"""
    found = gc.get_referents(cached)
    for depth in range(4):
        if any(isinstance(one, kind) for one in found):
            return True
        inner = [one for one in found if _is_container(one) or depth == 0]
        found = [x for one in inner if not isinstance(one, type | FunctionType | torch.Tensor)
                 for x in gc.get_referents(one)]  # fmt: skip
    return False


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict) or type(value).__name__ == "_lru_list_elem"
