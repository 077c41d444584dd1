// Linear layers with 8-bit weights: int8 or float8_e4m3fn. Arithmetic: linear_panels.h.
//
// A 64-byte line holds two depths of 32 outputs. Byte 16 j + 8 h + i of it belongs to output
// 16 h + (8 j + i) / 2 and depth i % 2, so that interleaving the line's low bytes and high bytes of
// bf16 within 128-bit lanes gives both halves of the panel in order.
//
// To bf16 in registers: the 128 magnitudes of a byte are looked up in two tables, one for either
// byte of the bf16, and the sign is added. -128 has no magnitude below 128; it is mended by a mask.
#include "formats.h"

#include <cmath>

namespace ridgeline::linear {
namespace {

// The 32 outputs of a line in order, as words whose halves are the bytes of two depths, widened to 16
// bits with their sign or with zeros.
template <bool SIGNED>
inline void words_of_line(const uint8_t* line, Words (&to)[VECTORS]) {
#if defined(__AVX512BW__)
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m512i bytes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(line));
  const __m256i half[2] = {_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1)};
  for (int i = 0; i < 2; ++i)
    to[i] = (Words)(SIGNED ? _mm512_cvtepi8_epi16(half[i]) : _mm512_cvtepu8_epi16(half[i]));
#elif defined(__AVX2__)
  const auto* from = reinterpret_cast<const __m256i*>(line);
  const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
  const __m256i half[2] = {_mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8),
                           _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8)};
  for (int i = 0; i < 4; ++i) {
    const __m128i bytes = i % 2 ? _mm256_extracti128_si256(half[i / 2], 1)
                                : _mm256_castsi256_si128(half[i / 2]);
    to[i] = (Words)(SIGNED ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes));
  }
#else
  using Signed = int8_t __attribute__((vector_size(8)));
  using Unsigned = uint8_t __attribute__((vector_size(8)));
  using Shorts = int16_t __attribute__((vector_size(16)));
  static_assert(LANES == 4);
  for (int i = 0; i < VECTORS; ++i) {
    const uint8_t* bytes = line + i % 4 * 16 + i / 4 * 8;
    Shorts shorts;
    if constexpr (SIGNED)
      shorts = __builtin_convertvector(load_vector<Signed>(bytes), Shorts);
    else
      shorts = __builtin_convertvector(load_vector<Unsigned>(bytes), Shorts);
    to[i] = reinterpret_cast<Words>(shorts);
  }
#endif
}

// e4m3fn: bias 7, no infinities, 0x7f is NaN.
inline Floats widened_float8(Words bits) {
  const Words size = bits & 0x7f, sign = (bits & 0x80) << 24;
  const Words normal = (size << 20) + (120 << 23);
  const Words small = reinterpret_cast<Words>(__builtin_convertvector(size, Floats) * 0x1p-9f);
  const Words found = size < 8 ? small : size == 0x7f ? Words{} + 0x7fc00000 : normal;
  return as_floats(found | sign);
}

#ifdef RIDGELINE_LINEAR_AVX512
float float8(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                             : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) size = NAN;
  return bits & 0x80 ? -size : size;
}

// Both bytes of the bf16 of 128 magnitudes.
struct Table {
  __m512i low[2], high[2];
  template <class Value>
  explicit Table(Value value) {
    alignas(64) uint8_t lows[128], highs[128];
    for (int i = 0; i < 128; ++i) {
      const uint16_t bits = rounded(value(static_cast<uint8_t>(i)));
      lows[i] = static_cast<uint8_t>(bits);
      highs[i] = static_cast<uint8_t>(bits >> 8);
    }
    for (int half = 0; half < 2; ++half) {
      low[half] = _mm512_load_si512(lows + 64 * half);
      high[half] = _mm512_load_si512(highs + 64 * half);
    }
  }
};

inline void interleave(__m512i low, __m512i high, __m512i (*to)[2]) {
  to[0][0] = _mm512_unpacklo_epi8(low, high);
  to[0][1] = _mm512_unpackhi_epi8(low, high);
}

constexpr int SIGN_OF_SECOND = 0xf8;  // a | (b & c) as a truth table of vpternlog
#endif

struct Int8 {
  static constexpr bool WIDE = false, PACKED = true;
  static constexpr int64_t STEP = 2, BYTES = 64;
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
    Words pairs[VECTORS];
    words_of_line<true>(from, pairs);
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) {
      sink(0, i, __builtin_convertvector(pairs[i] << 16 >> 16, Floats));
      sink(1, i, __builtin_convertvector(pairs[i] >> 16, Floats));
    }
  }
#ifdef RIDGELINE_LINEAR_AVX512
  Table table{[](uint8_t b) { return static_cast<float>(b); }};
  void load(const uint8_t* from, __m512i (*to)[2]) const {
    const __m512i bytes = _mm512_loadu_si512(from);
    const __m512i sizes = _mm512_abs_epi8(bytes);
    const __m512i low = _mm512_permutex2var_epi8(table.low[0], sizes, table.low[1]);
    __m512i high = _mm512_permutex2var_epi8(table.high[0], sizes, table.high[1]);
    high = _mm512_ternarylogic_epi64(high, bytes, _mm512_set1_epi8(char(0x80)), SIGN_OF_SECOND);
    // abs(-128) is 0x80: bf16(-128) is 0xc300.
    high = _mm512_mask_mov_epi8(high, _mm512_movepi8_mask(sizes), _mm512_set1_epi8(char(0xc3)));
    interleave(low, high, to);
  }
#endif
};

struct Float8 {
  static constexpr bool WIDE = false, PACKED = true;
  static constexpr int64_t STEP = 2, BYTES = 64;
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
    Words pairs[VECTORS];
    words_of_line<false>(from, pairs);
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) {
      sink(0, i, widened_float8(pairs[i] & 0xff));
      sink(1, i, widened_float8(pairs[i] >> 16));
    }
  }
#ifdef RIDGELINE_LINEAR_AVX512
  Table table{float8};
  void load(const uint8_t* from, __m512i (*to)[2]) const {
    const __m512i bytes = _mm512_loadu_si512(from);
    const __m512i low = _mm512_permutex2var_epi8(table.low[0], bytes, table.low[1]);
    __m512i high = _mm512_permutex2var_epi8(table.high[0], bytes, table.high[1]);
    high = _mm512_ternarylogic_epi64(high, bytes, _mm512_set1_epi8(char(0x80)), SIGN_OF_SECOND);
    interleave(low, high, to);
  }
#endif
};

Tensor linear_int8(const Tensor& x, const Tensor& panels, const Tensor& scales,
                   const std::optional<Tensor>& zeros, const std::optional<Tensor>& bias,
                   int64_t outputs, bool portable) {
  STD_TORCH_CHECK(panels.scalar_type() == ScalarType::Char ||
                      panels.scalar_type() == ScalarType::Float8_e4m3fn,
                  "linear_int8: weights must be int8 or float8_e4m3fn");
  return finished(operands(x, panels, scales, zeros, bias, outputs, panels.size(1) * 2),
                  share_int8(panels.scalar_type(), x.scalar_type(), portable));
}

}  // namespace

Share share_int8(ScalarType panels, ScalarType x, bool portable) {
  if (panels == ScalarType::Char) return share_of<Int8>(x, portable);
  return panels == ScalarType::Float8_e4m3fn ? share_of<Float8>(x, portable) : nullptr;
}

[[maybe_unused]] static const bool known = add_format(share_int8);

}  // namespace ridgeline::linear

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("linear_int8", TORCH_BOX(&ridgeline::linear::linear_int8));
}
