"""Let torchvision import where its binary does not fit this torch, so that its models build.

The published wheel is linked against one build of torch; beside another one (a CPU build) its
operators are missing and `import torchvision`, and with it `import timm`, ends in "operator
torchvision::nms does not exist". Shapes need no kernels: with the operators' schemas declared the
import succeeds, and what needs none of their kernels runs. Only a process of Ridgeline does this.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

BOXES = "Tensor input, Tensor rois, float scale, SymInt height, SymInt width"
QUANTISED = BOXES.replace(
    ", float", ", float in_scale, int in_zero, float rois_scale, int zero, float"
)
BACK = "SymInt batch, SymInt channels, SymInt in_height, SymInt in_width"
DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h,"
    " SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w,"
    " SymInt groups, SymInt offset_groups, bool use_mask"
)
GRAD = BOXES.replace("Tensor input", "Tensor grad")
MAPPED = GRAD.replace(", float", ", Tensor mapping, float")
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    f"roi_align({BOXES}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({GRAD}, {BACK}, int sampling_ratio, bool aligned) -> Tensor",
    f"qroi_align({QUANTISED}, int ratio, bool aligned) -> Tensor",
    f"roi_pool({BOXES}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({MAPPED}, {BACK}) -> Tensor",
    f"ps_roi_align({BOXES}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({MAPPED}, int ratio, {BACK}) -> Tensor",
    f"ps_roi_pool({BOXES}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({MAPPED}, {BACK}) -> Tensor",
    f"deform_conv2d({DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
"""The schemas that torchvision 0.28 registers in `torchvision/csrc/ops/`."""


def lacks_operators(error: Exception) -> bool:
    """Whether an import ended because torchvision's binary does not fit this torch."""
    return "operator torchvision::" in str(error)


@functools.cache
def let_torchvision_import() -> Any:
    """Declare the operators where torchvision cannot; what is returned keeps them declared.

    Nothing happens where torchvision imports as it is, or is not installed.
    """
    if importlib.util.find_spec("torchvision") is None:
        return None
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if not lacks_operators(error):
            raise
    else:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    return library
