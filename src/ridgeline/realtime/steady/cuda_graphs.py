"""Static stages recorded once and replayed: a frame costs one launch in place of hundreds.

A CUDA graph (CUDA C++ programming guide, CUDA graphs) is a fixed list of kernels on fixed
addresses. So a stage is recorded only where that is all it does: a module in eval mode on one GPU,
whose inputs keep their shapes, that keeps no state from frame to frame, and whose replay gives what
its call gave. Any other stage goes on as it was, and the reason is said. The host's time per frame,
where most of the jitter of GPU stages comes from, no longer grows with the number of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ridgeline.errors import in_words
from ridgeline.realtime.steady.buffers import FixedInputs

if TYPE_CHECKING:
    from torch import Tensor, nn

WARM_UPS = 3
"""Eager calls before a stage is recorded: libraries choose their kernels in the first ones."""
_TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
"""How far a replay may lie from the call, relative to the largest value: kernels that add with
atomics differ from call to call."""


class GraphRecorder(Protocol):
    """Records what a function does on a device, to be done again at the same addresses."""

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """The outputs, at fixed addresses that every replay writes to, and the replay."""


class CudaRecorder:
    """Records CUDA graphs; other threads may launch and allocate meanwhile."""

    def record(self, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Capture what `run` launches, on a stream of its own."""
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = run()
        return outputs, graph.replay


class RecordedStage:
    """A stage's module that replays a recording of itself wherever the inputs allow it.

    Outputs are copies, so a frame may wait on an edge while the next one is computed; they carry
    no gradients.
    """

    def __init__(self, stage: str, module: nn.Module, device: Any, recorder: GraphRecorder) -> None:
        self.stage = stage
        self._module = module
        self._device = device
        self._recorder = recorder
        self._calls = 0
        self._inputs: FixedInputs | None = None
        self._outputs: Any = None
        self._replay: Callable[[], None] | None = None
        self._refused = ""
        self._eager = 0

    def __call__(self, *inputs: Any) -> Any:
        """Replay, or call the module: before it is recorded, and where inputs differ in shape."""
        self._calls += 1
        if self._replay is not None and self._inputs is not None:
            if self._inputs.fill(inputs):
                self._replay()
                return _copies(self._outputs)
            self._eager += 1
            return self._module(*inputs)
        if self._refused or self._calls < WARM_UPS:
            return self._module(*inputs)
        return self._recorded(inputs)

    def _recorded(self, inputs: tuple[Any, ...]) -> Any:
        """Call the module once more, and record it if that is all there is to it."""
        import torch

        before = _State(self._module)
        with torch.no_grad():
            output = self._module(*inputs)
            self._refused = before.changed()
            if self._refused:
                return output
            try:
                self._record(inputs, output)
            except (RuntimeError, TypeError) as error:
                self._refused = in_words(error)
        return output

    def _record(self, inputs: tuple[Any, ...], output: Any) -> None:
        fixed = FixedInputs(inputs, self._device)
        fixed.fill(inputs)
        outputs, replay = self._recorder.record(lambda: self._module(*fixed.values))
        replay()
        self._refused = _difference(outputs, output)
        if not self._refused:
            self._inputs, self._outputs, self._replay = fixed, outputs, replay

    @property
    def recorded(self) -> bool:
        """Whether frames are replayed by now."""
        return self._replay is not None

    @property
    def said(self) -> str:
        """What became of the stage, in words."""
        if self._refused:
            return f"{self.stage} is called as before: {self._refused}"
        if self._replay is None:
            return f"{self.stage}: too few frames to record it"
        other = f", {self._eager} frames of other shapes called" if self._eager else ""
        return f"{self.stage} is recorded{other}"


def gpu_of(call: Callable[..., Any]) -> Any | None:
    """The one GPU that a stage's module computes on.

    None: it is no module, is in training mode, or is on the CPU or on several devices.
    """
    import torch

    if not isinstance(call, torch.nn.Module) or call.training:
        return None
    devices = {tensor.device for tensor in (*call.parameters(), *call.buffers())}
    device = next(iter(devices)) if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" else None


class _State:
    """What a module holds beside its parameters, as it is now."""

    def __init__(self, module: nn.Module) -> None:
        from ridgeline.runtimes.capture.states import StateSnapshot

        self._module = module
        self._python = StateSnapshot(module)
        self._kept = _attributes(module)
        self._buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def changed(self) -> str:
        """What a call has changed since, in words; empty: nothing."""
        import torch

        names = self._python.changed()
        now = _attributes(self._module)
        names += [name for name in now if now[name] is not self._kept.get(name)]
        for name, buffer in self._module.named_buffers():
            if name not in self._buffers or not torch.equal(buffer, self._buffers[name]):
                names.append(f"self.{name}")
        return f"it keeps {', '.join(names)} from frame to frame" if names else ""


def _attributes(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that the parts of a module keep as plain attributes."""
    import torch

    return {
        f"self.{path}.{key}".replace("..", "."): value
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _copies(outputs: Any) -> Any:
    """Outputs in memory of their own: the next replay writes over the recording's."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten(outputs)
    copied = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return tree_unflatten(copied, structure)


def _difference(replayed: Any, called: Any) -> str:
    """Why a replay may not stand for the call; empty: it may."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, structure = tree_flatten(replayed)
    expected, shape = tree_flatten(called)
    if structure != shape:
        return "its outputs differ in structure from call to call"
    for leaf, other in zip(leaves, expected, strict=True):
        if not isinstance(leaf, torch.Tensor):
            if leaf != other:
                return "an output that is no tensor differs from call to call"
        elif not leaf.is_floating_point():
            if not torch.equal(leaf, other):
                return "a replay gives other numbers than the call"
        elif not _close(leaf, other):
            return "a replay gives other numbers than the call"
    return ""


def _close(leaf: Tensor, other: Tensor) -> bool:
    import torch

    tolerance = _TOLERANCES.get(str(leaf.dtype).removeprefix("torch."), 1e-6)
    if leaf.numel() == 0:
        return bool(leaf.shape == other.shape)
    scale = float(other.abs().nan_to_num(posinf=0.0).max())
    atol = tolerance * max(scale, 1e-12)
    return bool(torch.allclose(leaf, other, rtol=0.0, atol=atol, equal_nan=True))
