// The lesson `bank-conflicts` in CUDA C++: a matrix transposed through tiles in shared memory.
//
//   nvcc -std=c++17 -arch=sm_90 -cubin bank_conflicts.cu && cuobjdump -sass bank_conflicts.cubin
//
// `bad` reads columns of a tile of 32 words per row, which lie in one bank; `good` has a 33rd word in
// each row. Their instructions are the same but for addresses: 4,096 bytes of shared memory become
// 4,224. `copied` moves 16 bytes with each load, which only aligned rows allow.

constexpr int kTile = 32;

template <int kWidth>
__device__ void transpose(const float* __restrict__ x, float* __restrict__ out, int rows,
                          int columns) {
    __shared__ float tile[kTile][kWidth];
    int column = blockIdx.x * kTile + threadIdx.x;
    int row = blockIdx.y * kTile + threadIdx.y;
    if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
    __syncthreads();
    column = blockIdx.y * kTile + threadIdx.x;
    row = blockIdx.x * kTile + threadIdx.y;
    if (row < columns && column < rows) out[row * rows + column] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void bad(const float* x, float* out, int rows, int columns) {
    transpose<kTile>(x, out, rows, columns);
}

extern "C" __global__ void good(const float* x, float* out, int rows, int columns) {
    transpose<kTile + 1>(x, out, rows, columns);
}

extern "C" __global__ void copied(const float4* __restrict__ x, float4* __restrict__ out,
                                  int quarters) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < quarters) out[at] = x[at];
}
