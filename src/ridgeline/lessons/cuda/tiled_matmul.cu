// The lesson `tiled-matmul` in CUDA C++: square matrices whose size is a multiple of the tile.
//
//   nvcc -std=c++17 -arch=sm_90 -cubin tiled_matmul.cu && cuobjdump -sass tiled_matmul.cubin
//
// `untiled` reads 2 n numbers for each of its own, `tiled` 2 n / 16, through shared memory, with two
// barriers a step. In `wide` a thread computes 4 x 4 numbers and fetches four with each load
// (LDG.E.128), so that shared memory is asked less, too.

constexpr int kTile = 16;
constexpr int kWide = 64;

extern "C" __global__ void untiled(const float* __restrict__ a, const float* __restrict__ b,
                                   float* __restrict__ out, int n) {
    const int row = blockIdx.y * kTile + threadIdx.y;
    const int column = blockIdx.x * kTile + threadIdx.x;
    float total = 0.0F;
    for (int k = 0; k < n; ++k) total += a[row * n + k] * b[k * n + column];
    out[row * n + column] = total;
}

extern "C" __global__ void tiled(const float* __restrict__ a, const float* __restrict__ b,
                                 float* __restrict__ out, int n) {
    __shared__ float left[kTile][kTile];
    __shared__ float right[kTile][kTile];
    const int y = threadIdx.y;
    const int x = threadIdx.x;
    const int row = blockIdx.y * kTile + y;
    const int column = blockIdx.x * kTile + x;
    float total = 0.0F;
    for (int first = 0; first < n; first += kTile) {
        left[y][x] = a[row * n + first + x];
        right[y][x] = b[(first + y) * n + column];
        __syncthreads();
        for (int k = 0; k < kTile; ++k) total += left[y][k] * right[k][x];
        __syncthreads();
    }
    out[row * n + column] = total;
}

// Blocks of 16 x 16 threads, tiles of 64 x 64 numbers, 16 deep; n is a multiple of 64.
extern "C" __global__ void wide(const float* __restrict__ a, const float* __restrict__ b,
                                float* __restrict__ out, int n) {
    __shared__ float left[kTile][kWide];   // transposed: [k][row]
    __shared__ float right[kTile][kWide];  // [k][column]
    const int y = threadIdx.y;
    const int x = threadIdx.x;
    const int t = y * kTile + x;
    const int top = blockIdx.y * kWide;
    const int beside = blockIdx.x * kWide;
    float total[4][4] = {};
    for (int first = 0; first < n; first += kTile) {
        const int row = t / 4;
        const int k = t % 4 * 4;
        const float4 of_a = *reinterpret_cast<const float4*>(&a[(top + row) * n + first + k]);
        left[k][row] = of_a.x;
        left[k + 1][row] = of_a.y;
        left[k + 2][row] = of_a.z;
        left[k + 3][row] = of_a.w;
        *reinterpret_cast<float4*>(&right[y][x * 4]) =
            *reinterpret_cast<const float4*>(&b[(first + y) * n + beside + x * 4]);
        __syncthreads();
#pragma unroll
        for (int step = 0; step < kTile; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    total[i][j] += left[step][y * 4 + i] * right[step][x * 4 + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float4*>(&out[(top + y * 4 + i) * n + beside + x * 4]) =
            make_float4(total[i][0], total[i][1], total[i][2], total[i][3]);
}
