"""Exercise of the lesson layouts: the mean over channels of images that lie in NCHW.

This is right, and its lanes run over channels, which lie height x width apart: 32 sectors for a
load. Leave the layout as it is, and choose other lanes.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x, out, pixels, CHANNELS: tl.constexpr):
    image, pixel = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    found = tl.load(x + image * CHANNELS * pixels + channel * pixels + pixel)
    tl.store(out + image * pixels + pixel, tl.sum(found, 0) / CHANNELS)


def solve(x):
    count, channels, height, width = x.shape
    pixels = height * width
    out = torch.empty(count, height, width)
    mean_kernel[(count, pixels)](x, out, pixels, CHANNELS=channels)
    return out
