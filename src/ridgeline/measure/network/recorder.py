"""A dispatch mode that writes down every operator of a forward pass, with its layer's path.

What PyTorch dispatches is what runs, whoever wrote the module; nothing has to be traced
symbolically. A tensor counts as fixed when it is made of parameters, buffers and constants alone:
this is known by its storage, so that views and writes in place need no cases of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.measure.higher_order import is_higher_order, run_inside
from ridgeline.measure.network.describe import (
    ATTENTION,
    DispatchedCall,
    attention,
    describe,
    recurrent,
    root_mean_square,
)
from ridgeline.models.vision.network import VisionOperator

VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "lift", "lift_fresh",
    "resize", "set", "unsafe_chunk", "unsafe_split",
}  # fmt: skip
"""Operators that move nothing although their schemas do not say so."""
CONSTANTS = {
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_local_scalar_dense", "arange",
    "empty", "empty_like", "empty_strided", "equal", "eye", "full", "full_like", "linspace",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
    "rand", "randn", "scalar_tensor", "zeros", "zeros_like",
}  # fmt: skip
"""Operators whose result does not depend on what their inputs hold."""
DATA_DEPENDENT = {
    "_local_scalar_dense", "_unique2", "masked_select", "nms", "nonzero", "repeat_interleave",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Operators that need numbers, not only shapes."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to the type checker
    """The operators of what runs inside it, in their order."""

    supports_higher_order_operators = True

    def __init__(
        self, given: list[torch.Tensor], is_complete: Callable[[], bool] = lambda: False
    ) -> None:
        """Record what follows from an image, or from all that a module is given.

        Args:
            given: What the module is called with.
            is_complete: Whether all that is to be counted has run, so that an operator whose
                result has a size of its own for each image ends the count.
        """
        super().__init__()
        self._is_complete = is_complete
        self.operators: list[VisionOperator] = []
        self.paths: list[str] = [""]
        """Paths of the layers that are running, the innermost last."""
        self.visited: set[str] = set()
        self._functions: dict[int, str] = {_storage(one): "" for one in given}
        """Storage of each tensor that depends on the image → the function that wrote it."""
        self._alive: list[torch.Tensor] = list(given)
        """Keeps storages from being used again under another tensor; on meta they are empty."""
        self._hidden = 0
        self.stopped_at = ""
        """The operator that shapes alone could not run; empty where all ran."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and write it down."""
        del types
        kwargs = kwargs or {}
        if is_higher_order(operator):
            return run_inside(self, operator, args, kwargs)
        name = operator._schema.name.partition("::")[2].rstrip("_")
        if name in DATA_DEPENDENT and self._reads_image(args) and self._is_complete():
            self.stopped_at = name
            raise RuntimeError(f"{name} depends on what the image shows")
        try:
            result = operator(*args, **kwargs)
        except RuntimeError as error:
            is_blind = name in DATA_DEPENDENT or "nonzero" in str(error)
            self.stopped_at = name if is_blind else ""
            raise
        if not self._hidden:
            self._note(name, operator.is_view, args, kwargs, result)
        return result

    def _reads_image(self, args: Any) -> bool:
        return any(_storage(one) in self._functions for one in _tensors(args))

    def _note(self, name: str, is_view: bool, args: Any, kwargs: Any, result: Any) -> None:
        outputs = _tensors(result)
        self._alive += outputs
        if is_view or not outputs or name in CONSTANTS:
            return
        tensors = _tensors((args, kwargs))
        written = [self._functions.get(_storage(one)) for one in tensors]
        fixed = [one is None for one in written]
        before = [one for one in written if one is not None]
        if name in VIEWS or (all(fixed) and not outputs[0].is_floating_point()):
            self._follow(outputs, before[0] if before else None)
            return
        if name.startswith(ATTENTION):  # a backend's kernel, which an exported graph may call
            query, key, value = tensors[:3]
            self.operators += attention(self.paths[-1], query, key, value, before[0])
            self._follow(outputs, "attention")
            return
        one = describe(
            DispatchedCall(
                name=name,
                path=self.paths[-1],
                args=tuple(args),
                tensors=tensors,
                fixed=fixed,
                output=outputs[0],
                after=before[0] if before else "",
            )
        )
        self.operators.append(one)
        self._follow(outputs, one.function if before else None)

    def fused(self, function: str, args: Any, kwargs: Any, run: Any) -> Any:
        """Write an operator down as what it computes, not as what it happens to dispatch."""
        with self._hiding():
            result = run()
        tensors = _tensors((args, kwargs))
        after = self._functions.get(_storage(tensors[0]), "")
        path = self.paths[-1]
        if function == "rms_norm":
            weight = tensors[1] if len(tensors) > 1 else None
            self.operators.append(root_mean_square(path, tensors[0], weight, after))
        elif function in RECURRENT:
            weights = [one for one in tensors[1:] if isinstance(one, torch.nn.Parameter)]
            self.operators.append(recurrent(path, tensors[0], weights, after))
        else:
            query, key, value = tensors[:3]
            self.operators += attention(path, query, key, value, after)
        outputs = _tensors(result)
        self._alive += outputs
        self._follow(outputs, self.operators[-1].function)
        return result

    def last_path(self) -> str:
        """The layer whose operator was the last to run."""
        return self.operators[-1].name if self.operators else "no operator"

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


class FusedFunctions(TorchFunctionMode):  # type: ignore[misc]  # as above
    """Hands what devices run as one operator to the recorder before a backend is chosen."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the function; attention, recurrent layers and root-mean-square norms as one."""
        del types
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name not in ("scaled_dot_product_attention", "rms_norm", *RECURRENT):
            return function(*args, **kwargs)
        return self._recorder.fused(name, args, kwargs, lambda: function(*args, **kwargs))


@contextlib.contextmanager
def following_layers(module: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """While inside, the recorder knows the path of the layer that is running."""

    def entering(path: str) -> Any:
        def enter(*_: Any) -> None:
            recorder.paths.append(path)
            recorder.visited.add(path)

        return enter

    def leaving(*_: Any) -> None:
        recorder.paths.pop()

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


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
