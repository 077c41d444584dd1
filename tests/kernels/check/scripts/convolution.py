"""A convolution as a matmul of what the image holds, with an autotuner."""

import torch, triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BM": 32, "BN": 32, "BK": 16}, num_warps=4),
        triton.Config({"BM": 16, "BN": 16, "BK": 16}, num_warps=2),
    ],
    key=["OC"],
)
@triton.jit
def conv2d_kernel(
    x,
    w,
    y,
    N,
    C,
    H,
    W,
    OC,
    OH,
    OW,
    KH: tl.constexpr,
    KW: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    m = pm * BM + tl.arange(0, BM)
    n = pn * BN + tl.arange(0, BN)
    M = N * OH * OW
    K = C * KH * KW
    b = m // (OH * OW)
    r = m % (OH * OW)
    oh = r // OW
    ow = r % OW
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        c = k // (KH * KW)
        rr = k % (KH * KW)
        kh = rr // KW
        kw = rr % KW
        ih = oh[:, None] + kh[None, :] - PAD
        iw = ow[:, None] + kw[None, :] - PAD
        mask = (m[:, None] < M) & (k[None, :] < K) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        xv = tl.load(x + ((b[:, None] * C + c[None, :]) * H + ih) * W + iw, mask=mask, other=0.0)
        wv = tl.load(
            w + n[None, :] * K + k[:, None], mask=(n[None, :] < OC) & (k[:, None] < K), other=0.0
        )
        acc += tl.dot(xv, wv)
    tl.store(
        y + ((b[:, None] * OC + n[None, :]) * OH + oh[:, None]) * OW + ow[:, None],
        acc.to(tl.float16),
        mask=(m[:, None] < M) & (n[None, :] < OC),
    )


def example():
    x = torch.randn(2, 5, 9, 11).half()
    w = (torch.randn(20, 5, 3, 3) / 6).half()
    y = torch.empty(2, 20, 9, 11, dtype=torch.float16)
    grid = lambda meta: (triton.cdiv(2 * 9 * 11, meta["BM"]), triton.cdiv(20, meta["BN"]))
    conv2d_kernel[grid](x, w, y, 2, 5, 9, 11, 20, 9, 11, 3, 3, 1)
    return y, torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
