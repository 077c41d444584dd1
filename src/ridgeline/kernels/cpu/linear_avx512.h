// The fast path of linear_panels.h: AVX-512 with bf16 dot products (Zen 4, Sapphire Rapids, later).
//
// One block is R rows of x by P panels, all sums in registers: each weight loaded (and unpacked)
// once serves R rows. With few rows this runs at the speed of memory. With more than one block of
// rows, the first one leaves what it unpacked in a scratch that stays in the cache (integers of 8
// bits are exact in bf16), the others read it there and fetch the next panel meanwhile.
#pragma once

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__AVX512BW__)
#define RIDGELINE_LINEAR_AVX512

namespace ridgeline::linear {

constexpr int MOST_ROWS = 12;      // 24 sums, 2 weights and a factor fill the 32 registers
constexpr int ROWS_OF_TWO = 4;     // up to here two panels run at once: sums wait for each other
constexpr int64_t AHEAD = 2048;    // bytes that are fetched in advance of their use

// bf16 weights, from memory or from the scratch.
struct Pairs {
  static constexpr bool WIDE = false, PACKED = false;
  static constexpr int64_t STEP = 2, BYTES = 128;
  void load(const uint8_t* from, __m512i (*to)[2]) const {
    to[0][0] = _mm512_loadu_si512(from);
    to[0][1] = _mm512_loadu_si512(from + 64);
  }
};

// Weights that also go to a scratch as they are unpacked.
template <class Weights>
struct Spilling {
  static constexpr bool WIDE = false;
  static constexpr int64_t STEP = Weights::STEP, BYTES = Weights::BYTES;
  const Weights& weights;
  mutable uint8_t* scratch;
  void load(const uint8_t* from, __m512i (*to)[2]) const {
    weights.load(from, to);
#pragma GCC unroll 2
    for (int s = 0; s < STEP / 2; ++s)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i, scratch += 64) _mm512_storeu_si512(scratch, to[s][i]);
  }
};

// What a block fetches in advance: from `next`, at every step `bytes` more, `stride` per panel.
struct FetchedPanels {
  const uint8_t* next;
  int64_t bytes, stride;
};

inline __m512 low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 high(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))));
}

template <int R, int P>
using Sums = __m512[R][2 * P];

// One step along the depth: bf16 rows take pairs as they are.
template <class Weights, int R, int P>
inline void add_step(const Weights& weights, const uint8_t* from, int64_t stride, const uint16_t* x,
                     int64_t depth, Sums<R, P>& sums) {
  __m512i w[P][Weights::STEP / 2][2];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) weights.load(from + p * stride, w[p]);
#pragma GCC unroll 2
  for (int s = 0; s < Weights::STEP / 2; ++s)
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * depth + 2 * s, sizeof pair);
      const __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int i = 0; i < 2 * P; ++i)
        sums[r][i] = _mm512_dpbf16_ps(sums[r][i], factor, (__m512bh)w[i / 2][s][i % 2]);
    }
}

// float32 rows multiply the two halves of the pairs, widened.
template <class Weights, int R, int P>
inline void add_step(const Weights& weights, const uint8_t* from, int64_t stride, const float* x,
                     int64_t depth, Sums<R, P>& sums) {
  __m512 w[P][Weights::STEP][2];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    if constexpr (Weights::WIDE) {
      weights.load(from + p * stride, w[p]);
    } else {
      __m512i pairs[Weights::STEP / 2][2];
      weights.load(from + p * stride, pairs);
#pragma GCC unroll 2
      for (int s = 0; s < Weights::STEP / 2; ++s)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          w[p][2 * s][i] = low(pairs[s][i]);
          w[p][2 * s + 1][i] = high(pairs[s][i]);
        }
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < Weights::STEP; ++s)
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512 factor = _mm512_set1_ps(x[r * depth + s]);
#pragma GCC unroll 4
      for (int i = 0; i < 2 * P; ++i)
        sums[r][i] = _mm512_fmadd_ps(factor, w[i / 2][s][i % 2], sums[r][i]);
    }
}

inline void store(uint16_t* out, __m512 value, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(out, lanes, (__m256i)_mm512_cvtneps_pbh(value));
}
inline void store(float* out, __m512 value, __mmask16 lanes) {
  _mm512_mask_storeu_ps(out, lanes, value);
}

inline __m512 scales_at(const Job& job, int64_t index) {
  if (!job.short_scales) return _mm512_loadu_ps(static_cast<const float*>(job.scales) + index);
  const auto* from = static_cast<const uint16_t*>(job.scales) + index;
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m512 zeros_at(const Job& job, int64_t index) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(job.zeros + index));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// Rows row … row + R by panels panel … panel + P, whose weights lie at `from`, `stride` apart.
template <class Weights, class X, int R, int P>
void block(const Weights& weights, const Job& job, const uint8_t* from, int64_t stride,
           FetchedPanels fetch, int64_t panel, int64_t row) {
  const X* x = static_cast<const X*>(job.x) + row * job.depth;
  const int64_t groups = job.groups();
  alignas(64) __m512 totals[R][2 * P];
  for (int64_t g = 0; g < groups; ++g) {
    Sums<R, P> sums;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 2 * P; ++i) sums[r][i] = _mm512_setzero_ps();
    for (const X* end = x + job.group; x != end; x += Weights::STEP, from += Weights::BYTES) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 2
        for (int64_t line = 0; line < Weights::BYTES; line += 64)
          _mm_prefetch(reinterpret_cast<const char*>(fetch.next + p * fetch.stride + line),
                       _MM_HINT_T1);
      fetch.next += fetch.bytes;
      add_step<Weights, R, P>(weights, from, stride, x, job.depth, sums);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 2 * P; ++i) {
      const int64_t index = ((panel + i / 2) * groups + g) * PANEL + 16 * (i % 2);
      const __m512 scale =
          job.scales == nullptr ? _mm512_set1_ps(1.0f) : scales_at(job, index);
      const __m512 zero = job.zeros == nullptr ? _mm512_setzero_ps() : zeros_at(job, index);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        __m512 sum = sums[r][i];
        if (job.zeros != nullptr) {
          const __m512 of_x = _mm512_set1_ps(job.sums[(row + r) * groups + g]);
          sum = _mm512_fnmadd_ps(zero, of_x, sum);
        }
        totals[r][i] = g == 0 ? _mm512_mul_ps(scale, sum) : _mm512_fmadd_ps(scale, sum, totals[r][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 2 * P; ++i) {
    const int64_t first = panel * PANEL + 16 * i;
    const int64_t count = std::clamp<int64_t>(job.outputs - first, 0, 16);
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    const __m512 bias =
        job.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, job.bias + first);
    X* out = static_cast<X*>(job.out) + row * job.outputs + first;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
      store(out + r * job.outputs, _mm512_add_ps(totals[r][i], bias), lanes);
  }
}

// Calls block() with the number of rows as a constant.
template <class Weights, class X, int P, int R>
void rows_by_panels(const Weights& weights, const Job& job, const uint8_t* from, int64_t stride,
                    FetchedPanels fetch, int64_t panel, int64_t row, int64_t rows) {
  if (rows >= R) return block<Weights, X, R, P>(weights, job, from, stride, fetch, panel, row);
  if constexpr (R > 1)
    rows_by_panels<Weights, X, P, R - 1>(weights, job, from, stride, fetch, panel, row, rows);
}

// Rows that stay in the cache while panels begin … end pass.
template <class Weights, class X>
void pass_panels(const Job& job, int64_t begin, int64_t end) {
  static const Weights weights{};
  static thread_local std::vector<uint8_t> scratch;
  const int64_t bytes = job.panel_bytes;
  const uint8_t* from = job.panels + begin * bytes;
  if (job.rows <= ROWS_OF_TWO)
    for (; begin + 2 <= end; begin += 2, from += 2 * bytes)
      rows_by_panels<Weights, X, 2, ROWS_OF_TWO>(
          weights, job, from, bytes, {from + AHEAD, Weights::BYTES, bytes}, begin, 0, job.rows);
  if (job.rows <= MOST_ROWS) {
    for (; begin < end; ++begin, from += bytes)
      rows_by_panels<Weights, X, 1, MOST_ROWS>(
          weights, job, from, 0, {from + AHEAD, Weights::BYTES, 0}, begin, 0, job.rows);
    return;
  }
  // Several blocks of rows, as equal as can be: each fetches its share of the next panel while it
  // computes.
  const int64_t blocks = (job.rows + MOST_ROWS - 1) / MOST_ROWS;
  const auto share = [&](int64_t row, int64_t rows, int64_t step) {
    const int64_t of_step = bytes * step / job.depth;
    return FetchedPanels{from + bytes + bytes * row / job.rows, of_step * rows / job.rows, 0};
  };
  if (Weights::PACKED) scratch.resize(job.depth * PANEL * 2);
  for (; begin < end; ++begin, from += bytes) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t row = b * job.rows / blocks, rows = (b + 1) * job.rows / blocks - row;
      if constexpr (!Weights::PACKED) {
        rows_by_panels<Weights, X, 1, MOST_ROWS>(
            weights, job, from, 0, share(row, rows, Weights::STEP), begin, row, rows);
      } else if (b == 0) {
        rows_by_panels<Spilling<Weights>, X, 1, MOST_ROWS>(
            {weights, scratch.data()}, job, from, 0, share(row, rows, Weights::STEP), begin, row,
            rows);
      } else {
        rows_by_panels<Pairs, X, 1, MOST_ROWS>(
            {}, job, scratch.data(), 0, share(row, rows, Pairs::STEP), begin, row, rows);
      }
    }
  }
}

template <class Weights, class X>
void share_avx512(const Job& job, int64_t begin, int64_t end) {
  in_chunks_of_rows<X>(job, ROWS_AT_ONCE, [begin, end](const Job& part) {
    pass_panels<Weights, X>(part, begin, end);
  });
}

}  // namespace ridgeline::linear
#endif
