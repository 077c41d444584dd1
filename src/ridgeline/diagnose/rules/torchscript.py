"""`torch.jit` is deprecated, and the programs that it made gain nothing from new work.

The documentation of PyTorch says so since July 2025, and 2.13 warns at `torch.jit.script` and
`torch.jit.trace`: Python 3.14 is not supported, and `torch.compile` or `torch.export` is named.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, warning
from ridgeline.records import Finding

CAUSES = ("torchscript",)


def find(reading: Reading) -> list[Finding]:
    """A program that the script loads, traces or scripts, or a model that is one."""
    made = reading.profile.settings.torchscript_site
    scripted = [model for model in reading.profile.models if model.scripted]
    if made is None and not scripted:
        return []
    what = f"{scripted[0].name} runs as" if scripted else "The script makes"
    called = [model.forward_site for model in scripted]
    return warning(
        "torchscript",
        confidence=0.95,
        summary=f"{what} a TorchScript program; torch.jit is deprecated.",
        evidence={
            "num_scripted_models": len(scripted),
            "num_parameters": sum(model.num_parameters for model in scripted),
        },
        where=called if made is None else [made],
        cure="Within Python take `torch.compile`; for a file that needs no model code "
        "`torch.export`, and AOTInductor or ONNX where Python is not: "
        "`ridgeline export script.py:function --to aoti`.",
        effort="code",
    )
