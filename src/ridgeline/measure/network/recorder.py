"""A dispatch mode that writes down every operator of a forward pass, with its layer's path.

What PyTorch dispatches is what runs, whoever wrote the module; nothing has to be traced
symbolically. A tensor counts as fixed when it is made of parameters, buffers and constants alone:
this is known by its storage, so that views and writes in place need no cases of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.measure.network.describe import Call, attention, describe
from ridgeline.models.vision.network import VisionOperator

FREE = {
    "_assert_async", "_local_scalar_dense", "_reshape_alias", "_unsafe_view", "alias", "arange",
    "bernoulli", "detach", "empty", "empty_like", "empty_strided", "equal", "full", "full_like",
    "is_same_size", "lift_fresh", "linspace", "new_empty", "new_empty_strided", "new_full",
    "new_ones", "ones", "ones_like", "resize", "scalar_tensor", "set", "sym_size",
    "sym_storage_offset", "sym_stride", "unsafe_split", "zeros", "_assert_scalar",
    "_assert_tensor_metadata", "lift", "unsafe_chunk",
}  # fmt: skip
"""Operators that move nothing, or make constants."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to the type checker
    """The operators of what runs inside it, in their order."""

    def __init__(self, image: torch.Tensor) -> None:
        super().__init__()
        self.operators: list[VisionOperator] = []
        self.paths: list[str] = []
        self._functions: dict[int, str] = {_storage(image): ""}
        """Storage of each tensor that depends on the image → the function that wrote it."""
        self._alive: list[torch.Tensor] = [image]
        """Keeps storages from being used again under another tensor; on meta they are empty."""
        self._hidden = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and write it down."""
        del types
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        outputs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self._alive += outputs
        if self._hidden or not outputs or operator.is_view:
            return result
        name = operator._schema.name.partition("::")[2].rstrip("_")
        fixed = [_storage(one) not in self._functions for one in tensors]
        before = [self._functions[_storage(one)] for one in tensors if _is_in(one, self._functions)]
        if name in FREE or (all(fixed) and not outputs[0].is_floating_point()):
            self._follow(outputs, before[0] if before and name not in ("empty_like",) else None)
            return result
        call = Call(
            name=name,
            path=self.paths[-1] if self.paths else "",
            args=tuple(args),
            tensors=tensors,
            fixed=fixed,
            output=outputs[0],
            after=before[0] if before else "",
        )
        one = describe(call)
        self.operators.append(one)
        self._follow(outputs, None if all(fixed) else one.function)
        return result

    def attention(self, query: Any, key: Any, value: Any, run: Any) -> Any:
        """Write fused attention down as what it computes, and run it unseen."""
        with self._hiding():
            result = run()
        after = self._functions.get(_storage(query), "")
        path = self.paths[-1] if self.paths else ""
        self.operators += attention(path, query, key, value, after)
        self._alive.append(result)
        self._follow([result], "attention")
        return result

    @contextlib.contextmanager
    def _hiding(self) -> Iterator[None]:
        self._hidden += 1
        try:
            yield
        finally:
            self._hidden -= 1

    def _follow(self, outputs: list[torch.Tensor], function: str | None) -> None:
        if function is not None:
            self._functions.update(dict.fromkeys(map(_storage, outputs), function))


class FusedAttention(TorchFunctionMode):  # type: ignore[misc]  # as above
    """Hands every `scaled_dot_product_attention` to the recorder before a backend is chosen."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the function; attention as one."""
        del types
        kwargs = kwargs or {}
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **kwargs)
        named = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        return self._recorder.attention(
            named["query"], named["key"], named["value"], lambda: function(*args, **kwargs)
        )


@contextlib.contextmanager
def following_layers(module: torch.nn.Module, paths: list[str]) -> Iterator[None]:
    """While inside, `paths` ends with the path of the layer that is running."""

    def entering(path: str) -> Any:
        return lambda *_: paths.append(path)

    def leaving(*_: Any) -> None:
        paths.pop()

    handles = []
    for path, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(entering(path)))
        handles.append(layer.register_forward_hook(leaving, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_in(tensor: torch.Tensor, functions: dict[int, str]) -> bool:
    return _storage(tensor) in functions
