"""An example that asks for CUDA gets the CPU: wrappers of kernels place and check their tensors.

Under the interpreter everything is computed on the CPU. Here each tensor says that it is on
`cuda:0`, what is asked for there is made on the CPU, and the device's figures are an H100's. So a
wrapper that asserts `x.is_cuda`, or sizes its grid by the multiprocessors, runs as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget

from ridgeline.hardware.catalogue import device
from ridgeline.hardware.processors import processor
from ridgeline.patches import ON_CUDA, in_reverse, patch

_CUDA: Final = torch.device("cuda", 0)
_DEVICE: Final = "h100-sxm"
"""The part whose figures the example is told."""
_PLAIN_SHARED_BYTES: Final = 48 * 1024
"""What a block may have of shared memory without asking for more (CUDA's programming guide)."""
_CONTEXTS: Final = ("device", "device_of", "_DeviceGuard")
"""Names of `torch.cuda` that are used by `with`."""


@contextlib.contextmanager
def on_cuda() -> Iterator[None]:
    """Run the block as on a machine with one GPU whose memory is the CPU's.

    Triton's driver stays replaced afterwards: the process ends with its check.
    """
    placing = _Placing()
    told = _told()
    triton.runtime.driver.set_active(_Driver(told["get_device_properties"]))
    undo = in_reverse(
        [
            patch("triton.runtime.interpreter:GridExecutor.__call__", placing.plainly),
            *(patch(f"torch.cuda:{name}", _answering(name, told)) for name in ON_CUDA),
        ]
    )
    try:
        with placing:
            yield
    finally:
        undo()


class _Placing(TorchFunctionMode):
    """Takes `cuda` for the CPU in every call of torch, and says `cuda` of every tensor."""

    def __init__(self) -> None:
        super().__init__()
        self._in_a_launch = False

    def plainly(self, original: Callable[..., None]) -> Callable[..., None]:
        """A launch that sees tensors as they are."""

        def launch(*args: Any, **kwargs: Any) -> None:
            before, self._in_a_launch = self._in_a_launch, True
            try:
                original(*args, **kwargs)
            finally:
                self._in_a_launch = before

        return launch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._in_a_launch:
            return func(*args, **kwargs)
        if func in _OF_A_TENSOR:
            return _OF_A_TENSOR[func](args[0])
        placed = func is torch.Tensor.to and _asks_for_cuda((*args[1:], *kwargs.values()))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        found = func(*(_here(one) for one in args), **kwargs)
        # A copy, as a GPU's memory would be: the original stays as it is when a kernel writes.
        return found.clone() if placed and found is args[0] else found


def _asks_for_cuda(values: tuple[Any, ...]) -> bool:
    return any(_here(one) is not one for one in values)


def _here(device: Any) -> Any:
    """The CPU in place of a CUDA device; anything else as it is."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device == "cuda" or device.startswith("cuda:") else device
    return device


_OF_A_TENSOR: Final[dict[Any, Callable[[torch.Tensor], Any]]] = {
    torch.Tensor.is_cuda.__get__: lambda _: True,
    torch.Tensor.device.__get__: lambda _: _CUDA,
    torch.Tensor.get_device: lambda _: 0,
    torch.Tensor.cuda: torch.Tensor.clone,
    torch.Tensor.pin_memory: torch.Tensor.clone,
}
"""What a tensor says of its place."""


def _told() -> dict[str, Any]:
    """What functions of `torch.cuda` say; the others of `ON_CUDA` do nothing."""
    part, limits = device(_DEVICE), processor(_DEVICE)
    major, minor = map(int, str(part.target).split("."))
    properties = SimpleNamespace(
        name=part.cuda_names[0],
        major=major,
        minor=minor,
        multi_processor_count=part.chip.num_units,
        total_memory=part.memory.reported_bytes,
        L2_cache_size=part.chip.l2_bytes,
        warp_size=limits.threads_per_warp,
        max_threads_per_multi_processor=limits.warps * limits.threads_per_warp,
        regs_per_multiprocessor=limits.registers,
        shared_memory_per_multiprocessor=limits.shared_bytes,
        shared_memory_per_block=min(_PLAIN_SHARED_BYTES, limits.shared_bytes_per_block),
        shared_memory_per_block_optin=limits.shared_bytes_per_block,
    )
    return {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": properties.name,
        "get_device_capability": (major, minor),
        "get_device_properties": properties,
        "current_stream": SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
        "is_bf16_supported": True,
    }


def _answering(name: str, told: dict[str, Any]) -> Callable[[Any], Any]:
    if name in _CONTEXTS:
        return lambda _: lambda *_: contextlib.nullcontext()
    return lambda _: lambda *_, **__: told.get(name)


class _Driver:
    """Stands for the driver that Triton asks of its GPU; its methods have Triton's names."""

    def __init__(self, properties: SimpleNamespace) -> None:
        figures = {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda _: figures)
        self._target = GPUTarget("cuda", 10 * properties.major + properties.minor, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_active_torch_device(self) -> torch.device:
        return _CUDA

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        return 0

    def get_device_interface(self) -> ModuleType:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda *_, **__: [0.0]
