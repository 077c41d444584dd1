"""What a trace says was recorded, for one that holds no GPU work: `what_was_recorded(trace)`.

No GPU event has many reasons: nothing ran on a GPU; the profiler did not record it, as nsys and
rocprofv3 do not where they are asked for the program's own ranges alone; the file was
cut before its kernels, which Kineto writes after the host's events; or the work is of a category
that we do not know. The host's calls, the header and the skipped events tell them apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ridgeline.trace.columns import Category, Trace

_LAUNCH = re.compile(
    r"launch|^(?:ze|cl|url?)\w*append\w*kernel|enqueue\w*kernel|^runFunction", re.IGNORECASE
)
"""Calls that start work: of CUDA, HIP, MUSA, CANN (`…LaunchKernel`), of SYCL and of MTIA."""
_GPU_BACKENDS = re.compile(r"nccl|rccl|mccl|cncl|hccl|eccl", re.IGNORECASE)
"""Backends of torch.distributed that join accelerators and nothing else."""
_RUNS_ON_GPUS = re.compile(
    r"^aten::_?(cudnn|miopen)_(?!is_acceptable)|^aten::_thnn_fused_"
    r"|^aten::_(scaled_dot_product_)?(efficient|flash|cudnn)_attention(_forward|_backward)?$"
)
"""Operators that torch has for GPUs alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Signs of GPU work in a trace, besides the work itself."""

    gpus: tuple[str, ...] = ()
    """Names of the GPUs that the header lists, one each time it does."""
    launch_calls: int = 0
    """Calls of the runtime or driver that start work."""
    gpu_calls: int = 0
    """Calls of the runtime or driver of an accelerator, launches included."""
    gpu_records: int = 0
    """Annotations and waits as the GPU saw them."""
    gpu_operators: int = 0
    """Operators that run on GPUs alone."""
    gpu_allocations: int = 0
    """Allocations of a GPU's memory."""
    gpu_backend: str | None = None
    """The backend of torch.distributed, where it joins accelerators alone."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Events of categories that we do not know."""
    cut: bool = False
    """Does the file end early?"""
    record_gpu: str | None = None
    """How the profiler is asked for GPU work, where nothing tells whether it was."""


def what_was_recorded(trace: Trace) -> Recorded:
    """The signs of GPU work in a trace."""
    host = trace.host
    names = host.name[host.is_call]
    joins_gpus = trace.backend is not None and _GPU_BACKENDS.search(trace.backend)
    launching = np.array([bool(_LAUNCH.search(name)) for name in trace.names] or [False])
    on_gpus = np.array([bool(_RUNS_ON_GPUS.search(name)) for name in trace.names] or [False])
    return Recorded(
        gpus=tuple(device.name or "GPU" for device in trace.devices),
        launch_calls=int(launching[names].sum()),
        gpu_calls=len(names),
        gpu_records=len(trace.gpu_annotations) + len(trace.sync),
        gpu_operators=int(on_gpus[host.name].sum()),
        gpu_allocations=int((trace.memory.device_type != 0).sum()),
        gpu_backend=trace.backend if joins_gpus else None,
        skipped=trace.skipped,
        cut=trace.cut,
        record_gpu=trace.record_gpu,
    )


def joined_records(records: Iterable[Recorded]) -> Recorded:
    """The signs of several ranks as one: sums, and the longest list of GPUs."""
    several = list(records)
    skipped: Counter[str] = Counter()
    for one in several:
        skipped.update(one.skipped)
    return Recorded(
        gpus=max((one.gpus for one in several), key=len, default=()),
        launch_calls=sum(one.launch_calls for one in several),
        gpu_calls=sum(one.gpu_calls for one in several),
        gpu_records=sum(one.gpu_records for one in several),
        gpu_operators=sum(one.gpu_operators for one in several),
        gpu_allocations=sum(one.gpu_allocations for one in several),
        gpu_backend=next((one.gpu_backend for one in several if one.gpu_backend), None),
        skipped=dict(skipped),
        cut=any(one.cut for one in several),
        record_gpu=next((one.record_gpu for one in several if one.record_gpu), None),
    )


def seen_by_torch(trace: Trace) -> bool:
    """Does the trace hold operators or frames of Python?"""
    shown = (trace.host.category == Category.OPERATOR) | (trace.host.category == Category.PYTHON)
    return bool(shown.any())
