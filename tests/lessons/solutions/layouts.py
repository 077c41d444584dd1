"""An answer to the exercise of the lesson layouts."""

import torch
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x, out, pixels, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    total = tl.zeros((BLOCK,), tl.float32)
    for channel in range(CHANNELS):
        total += tl.load(x + (image * CHANNELS + channel) * pixels + pixel, mask=inside, other=0.0)
    tl.store(out + image * pixels + pixel, total / CHANNELS, mask=inside)


def solve(x):
    count, channels, height, width = x.shape
    pixels = height * width
    out = torch.empty(count, height, width)
    mean_kernel[(count, triton.cdiv(pixels, 64))](x, out, pixels, CHANNELS=channels, BLOCK=64)
    return out
