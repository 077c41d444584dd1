"""A matmul over tensor descriptors."""

import torch, triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def mm_desc(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a_desc.load([m, k]), b_desc.load([k, n]), acc)
    c_desc.store([m, n], acc.to(tl.float16))


@triton.jit
def mm_block(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    ap = tl.make_block_ptr(a, (M, K), (K, 1), (tl.program_id(0) * BM, 0), (BM, BK), (1, 0))
    bp = tl.make_block_ptr(b, (K, N), (N, 1), (0, tl.program_id(1) * BN), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(tl.load(ap, boundary_check=(0, 1)), tl.load(bp, boundary_check=(0, 1)))
        ap = tl.advance(ap, (0, BK))
        bp = tl.advance(bp, (BK, 0))
    cp = tl.make_block_ptr(
        c, (M, N), (N, 1), (tl.program_id(0) * BM, tl.program_id(1) * BN), (BM, BN), (1, 0)
    )
    tl.store(cp, acc.to(tl.float16), boundary_check=(0, 1))


def example():
    M, N, K = 72, 56, 40
    a = torch.randn(M, K).half()
    b = torch.randn(K, N).half()
    c = torch.empty(M, N, dtype=torch.float16)
    c2 = torch.empty_like(c)
    d = lambda t, s: TensorDescriptor.from_tensor(t, s)
    g = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    mm_desc[g](d(a, [32, 16]), d(b, [16, 32]), d(c, [32, 32]), M, N, K, 32, 32, 16)
    want = a.double() @ b.double()
    return [(c, want)]
