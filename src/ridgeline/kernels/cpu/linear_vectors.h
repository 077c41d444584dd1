// The path of linear_panels.h for every CPU: float32 products in vectors of the CPU's own width.
//
// One row: weights go from memory through registers, widened on their way, into the sums of several
// panels at once, each a stream of its own that the CPU fetches ahead.
//
// More rows: a chunk of the depth of a panel or two is widened into a scratch that stays in the
// first-level cache, and blocks of R rows pass over it, all sums in registers. Widening is paid once
// for all rows, so one small kernel serves every format; meanwhile the next chunk is fetched. Rows
// are brought into the order in which they are read, [block][depth][R], as floats.
//
// A format says how one line of a panel becomes floats:
//   STEP, BYTES       depth and size of a line
//   line(from, sink)  calls sink(k, i, weights) for each k < STEP and vector i of the panel
#pragma once

namespace ridgeline::linear {

// As many sums as registers hold beside factors and weights. How many rows a block has, up to how
// many rows two panels run at once, and how many panels with a single row.
#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS_OF_BLOCK = 6, ROWS_OF_PAIR = 6, PANELS_OF_ONE_ROW = 8;  // of 32
#elif defined(__AVX2__)
constexpr int LANES = 8, ROWS_OF_BLOCK = 3, ROWS_OF_PAIR = 1, PANELS_OF_ONE_ROW = 3;  // of 16
#else
constexpr int LANES = 4, ROWS_OF_BLOCK = 3, ROWS_OF_PAIR = 1, PANELS_OF_ONE_ROW = 2;  // NEON's 32
#endif
constexpr int VECTORS = PANEL / LANES;  // of a panel
constexpr int64_t CHUNK = 128;          // of the depth, widened at once
constexpr int64_t FETCHED = 768;        // bytes that are fetched in advance of their use
constexpr int64_t BYTES_OF_ROWS = 1 << 20;  // of rows as floats, so that they stay in the cache
constexpr int64_t FEWEST_ROWS_AT_ONCE = 48;

using Floats = float __attribute__((vector_size(LANES * 4)));
using Words = int32_t __attribute__((vector_size(LANES * 4)));

template <class Vector>
inline Vector load_vector(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector>
inline void store_vector(Vector value, void* to) {
  std::memcpy(to, &value, sizeof value);
}

// The floats that have these bits.
inline Floats as_floats(Words bits) { return reinterpret_cast<Floats>(bits); }

// The same number in all lanes. (x − 0 is x to a compiler, 0 + x is not.)
inline Floats filled(float x) { return x - Floats{}; }

// Keeps a value that is used several times in a register; compilers would load it at each use.
inline void keep(Floats& value) {
#if defined(__x86_64__)
  asm("" : "+v"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
}

// What is fetched while a block computes: from `next`, `step` bytes for each k.
struct Fetch {
  const uint8_t* next;
  int64_t step;
};

// R rows by P panels along n of the depth, added to `sums` [R][P][32]; panels lie `stride` apart.
template <int R, int P>
void add_products(const float* x, const float* weights, int64_t stride, int64_t n, Fetch fetch,
                  float* sums) {
  constexpr int W = P * VECTORS;
  Floats total[R][W];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) total[r][i] = load_vector<Floats>(sums + (r * W + i) * LANES);
#pragma GCC unroll 2
  for (int64_t k = 0; k < n; ++k, x += R, weights += PANEL, fetch.next += fetch.step) {
    __builtin_prefetch(fetch.next);
    __builtin_prefetch(fetch.next + fetch.step / 2);
    // The fewer of factors and weights stay in registers, the others pass.
    if constexpr (R < W) {
      Floats factor[R];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) factor[r] = filled(x[r]);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        auto weight = load_vector<Floats>(weights + i / VECTORS * stride + i % VECTORS * LANES);
        keep(weight);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) total[r][i] += factor[r] * weight;
      }
    } else {
      Floats weight[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i)
        weight[i] = load_vector<Floats>(weights + i / VECTORS * stride + i % VECTORS * LANES);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        Floats factor = filled(x[r]);
        keep(factor);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) total[r][i] += factor * weight[i];
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) store_vector(total[r][i], sums + (r * W + i) * LANES);
}

// A block of rows by one panel or two: add_products() with both numbers as constants.
// The libraries of all formats call it.
__attribute__((visibility("default"))) void add_block(int64_t rows, int64_t panels, const float* x,
                                                      const float* weights, int64_t stride,
                                                      int64_t n, Fetch fetch, float* sums);

// Blocks of rows as equal as can be.
struct Blocks {
  int64_t rows, count;
  explicit Blocks(int64_t of) : rows(of), count((of + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK) {}
  int64_t begin(int64_t block) const { return block * rows / count; }
};

// [rows, depth] as floats in the order [block][depth][rows of the block].
template <class X>
void arrange_rows(const X* from, const Blocks& blocks, int64_t depth, float* to) {
  for (int64_t b = 0; b < blocks.count; ++b) {
    const int64_t first = blocks.begin(b), rows = blocks.begin(b + 1) - first;
    for (int64_t r = 0; r < rows; ++r) {
      const X* row = from + (first + r) * depth;
      for (int64_t k = 0; k < depth; ++k) to[k * rows + r] = read(row + k);
    }
    to += rows * depth;
  }
}

inline Floats scales_of(const Job& job, int64_t index) {
  if (job.scales == nullptr) return filled(1.0f);
  if (!job.short_scales)
    return load_vector<Floats>(static_cast<const float*>(job.scales) + index);
  using Shorts = uint16_t __attribute__((vector_size(LANES * 2)));
  const auto bits = load_vector<Shorts>(static_cast<const uint16_t*>(job.scales) + index);
  return as_floats(__builtin_convertvector(bits, Words) << 16);
}

inline Floats zeros_of(const Job& job, int64_t index) {
  using Bytes = int8_t __attribute__((vector_size(LANES)));
  return __builtin_convertvector(load_vector<Bytes>(job.zeros + index), Floats);
}

// Scales the sums of a group, adds them to what the groups before it gave, and clears them.
template <int P>
void fold_group(const Job& job, int64_t panel, int64_t group, float* sums, float* totals) {
  const int64_t groups = job.groups();
  for (int i = 0; i < P * VECTORS; ++i) {
    const int64_t index =
        ((panel + i / VECTORS) * groups + group) * PANEL + i % VECTORS * LANES;
    const Floats scale = scales_of(job, index);
    const Floats zero = job.zeros == nullptr ? Floats{} : zeros_of(job, index);
    for (int64_t row = 0; row < job.rows; ++row) {
      const int64_t at = (row * P * VECTORS + i) * LANES;
      auto sum = load_vector<Floats>(sums + at);
      if (job.zeros != nullptr) sum -= zero * job.sums[row * groups + group];
      const Floats total =
          group == 0 ? scale * sum : load_vector<Floats>(totals + at) + scale * sum;
      store_vector(total, totals + at);
      store_vector(Floats{}, sums + at);
    }
  }
}

template <class X>
void write_panels(const Job& job, int64_t panel, int64_t panels, const float* totals) {
  for (int64_t row = 0; row < job.rows; ++row)
    for (int64_t p = 0; p < panels; ++p, totals += PANEL) {
      const int64_t first = (panel + p) * PANEL, count = std::min(PANEL, job.outputs - first);
      X* out = static_cast<X*>(job.out) + row * job.outputs + first;
      for (int64_t lane = 0; lane < count; ++lane)
        write(out + lane, totals[lane] + (job.bias == nullptr ? 0.0f : job.bias[first + lane]));
    }
}

// Widens n of the depth of a panel.
template <class Weights>
void widen(const uint8_t* from, int64_t n, float* to) {
  for (; n > 0; n -= Weights::STEP, from += Weights::BYTES, to += Weights::STEP * PANEL)
    Weights::line(from, [to](int k, int i, Floats weights) {
      store_vector(weights, to + k * PANEL + i * LANES);
    });
}

// One row by P panels, added to `sums` [P][32].
template <class Weights, int P>
void add_row(const float* x, const uint8_t* from, int64_t stride, int64_t n, float* sums) {
  Floats total[P][VECTORS];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i)
      total[p][i] = load_vector<Floats>(sums + (p * VECTORS + i) * LANES);
  for (; n > 0; n -= Weights::STEP, from += Weights::BYTES, x += Weights::STEP)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const uint8_t* line = from + p * stride;
#pragma GCC unroll 2
      for (int64_t at = 0; at < Weights::BYTES; at += 64) __builtin_prefetch(line + FETCHED + at);
      Weights::line(line, [&total, x, p](int k, int i, Floats weights) {
        total[p][i] += filled(x[k]) * weights;
      });
    }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i)
      store_vector(total[p][i], sums + (p * VECTORS + i) * LANES);
}

// What a thread works with, kept from call to call.
struct Bench {
  std::vector<float> rows, weights, sums, totals;

  void fit(int64_t rows_at_once, int64_t depth) {
    const int64_t most = rows_at_once == 1 ? PANELS_OF_ONE_ROW : 2;
    rows.resize(rows_at_once * depth);
    weights.resize(2 * CHUNK * PANEL);
    sums.resize(rows_at_once * most * PANEL);
    totals.resize(sums.size());
  }
};

// Blocks of rows by P panels along a chunk of `n` that begins at k.
template <class Weights, int P>
void add_chunk(const Job& job, const Blocks& blocks, const uint8_t* from, int64_t k, int64_t n,
               Bench& bench) {
  const int64_t bytes = n / Weights::STEP * Weights::BYTES;
  for (int p = 0; p < P; ++p)
    widen<Weights>(from + p * job.panel_bytes, n, bench.weights.data() + p * CHUNK * PANEL);
  for (int64_t b = 0; b < blocks.count; ++b) {
    const int64_t first = blocks.begin(b), rows = blocks.begin(b + 1) - first;
    // Its share of the next chunk of P panels.
    const int64_t panel = b * P / blocks.count, at = bytes * (b * P % blocks.count) / blocks.count;
    const Fetch fetch{from + panel * job.panel_bytes + bytes + at, bytes * P / blocks.count / n};
    add_block(rows, P, bench.rows.data() + first * job.depth + k * rows, bench.weights.data(),
              CHUNK * PANEL, n, fetch, bench.sums.data() + first * P * PANEL);
  }
}

// P panels by all rows of the job, which lie arranged in `bench`.
template <class Weights, class X, int P>
void multiply_panels(const Job& job, const Blocks& blocks, int64_t panel, Bench& bench) {
  std::fill_n(bench.sums.begin(), job.rows * P * PANEL, 0.0f);
  const uint8_t* from = job.panels + panel * job.panel_bytes;
  for (int64_t g = 0; g < job.groups(); ++g) {
    const int64_t end = (g + 1) * job.group;
    for (int64_t k = g * job.group; k < end; k += CHUNK) {
      const int64_t n = std::min(CHUNK, end - k);
      const uint8_t* chunk = from + k / Weights::STEP * Weights::BYTES;
      if (job.rows == 1) {
        add_row<Weights, P>(bench.rows.data() + k, chunk, job.panel_bytes, n, bench.sums.data());
      } else if constexpr (P <= 2) {
        add_chunk<Weights, P>(job, blocks, chunk, k, n, bench);
      }
    }
    fold_group<P>(job, panel, g, bench.sums.data(), bench.totals.data());
  }
  write_panels<X>(job, panel, P, bench.totals.data());
}

// Rows that stay in the cache while panels begin … end pass.
template <class Weights, class X>
void pass_panels_of_vectors(const Job& job, int64_t begin, int64_t end) {
  static thread_local Bench bench;
  const Blocks blocks(job.rows);
  bench.fit(job.rows, job.depth);
  arrange_rows(static_cast<const X*>(job.x), blocks, job.depth, bench.rows.data());
  if (job.rows == 1)
    for (; begin + PANELS_OF_ONE_ROW <= end; begin += PANELS_OF_ONE_ROW)
      multiply_panels<Weights, X, PANELS_OF_ONE_ROW>(job, blocks, begin, bench);
  if (ROWS_OF_PAIR == ROWS_OF_BLOCK || job.rows <= ROWS_OF_PAIR)
    for (; begin + 2 <= end; begin += 2) multiply_panels<Weights, X, 2>(job, blocks, begin, bench);
  for (; begin < end; ++begin) multiply_panels<Weights, X, 1>(job, blocks, begin, bench);
}

template <class Weights, class X>
void share_vectors(const Job& job, int64_t begin, int64_t end) {
  const int64_t in_cache = BYTES_OF_ROWS / static_cast<int64_t>(job.depth * sizeof(float));
  const int64_t at_once = std::clamp(in_cache, FEWEST_ROWS_AT_ONCE, ROWS_AT_ONCE);
  in_chunks_of_rows<X>(job, at_once, [begin, end](const Job& part) {
    pass_panels_of_vectors<Weights, X>(part, begin, end);
  });
}

}  // namespace ridgeline::linear
