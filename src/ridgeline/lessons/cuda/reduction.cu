// The lesson `reduction` in CUDA C++: 256 numbers summed by a block, four ways.
//
//   nvcc -std=c++17 -arch=sm_90 -cubin reduction.cu && cuobjdump -sass reduction.cubin
//
// `modulo` keeps a few lanes of every warp busy, `interleaved` lets whole warps stop but meets in
// banks, `sequential` does neither, `shuffle` needs one barrier. Expected in the machine code: a BAR
// for each step of the first three, whose loops are unrolled; SHFL in the last alone.

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr unsigned kAll = 0xFFFFFFFFU;

extern "C" __global__ void modulo(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[kThreads];
    const int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
#pragma unroll
    for (int s = 1; s < kThreads; s *= 2) {
        if (t % (2 * s) == 0) tile[t] += tile[t + s];
        __syncthreads();
    }
    if (t == 0) out[0] = tile[0];
}

extern "C" __global__ void interleaved(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[kThreads];
    const int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
#pragma unroll
    for (int s = 1; s < kThreads; s *= 2) {
        if (t < kThreads / 2 / s) tile[2 * s * t] += tile[2 * s * t + s];
        __syncthreads();
    }
    if (t == 0) out[0] = tile[0];
}

extern "C" __global__ void sequential(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[kThreads];
    const int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
#pragma unroll
    for (int s = kThreads / 2; s > 0; s /= 2) {
        if (t < s) tile[t] += tile[t + s];
        __syncthreads();
    }
    if (t == 0) out[0] = tile[0];
}

extern "C" __global__ void shuffle(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float sums[kThreads / kLanes];
    const int t = threadIdx.x;
    float value = x[t];
#pragma unroll
    for (int delta = kLanes / 2; delta > 0; delta /= 2)
        value += __shfl_down_sync(kAll, value, delta);
    if (t % kLanes == 0) sums[t / kLanes] = value;
    __syncthreads();
    if (t >= kLanes) return;
    value = t < kThreads / kLanes ? sums[t] : 0.0F;
#pragma unroll
    for (int delta = kThreads / kLanes / 2; delta > 0; delta /= 2)
        value += __shfl_down_sync(kAll, value, delta);
    if (t == 0) out[0] = value;
}

// A branch whose sides are too long to be switched off lane by lane: the warp goes apart (BSSY) and
// meets again (BSYNC).
extern "C" __global__ void branching(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int t = threadIdx.x;
    float value = x[t];
    if (t % 2 == 0) {
        for (int i = 0; i < n; ++i) value = value * 1.5F + x[i];
    } else {
        for (int i = 0; i < n; ++i) value = value / x[i] - 1.0F;
    }
    out[t] = value;
}
