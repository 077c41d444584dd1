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

// Undoes the order of bytes above: to[depth][32].
template <class Value>
void unpack_lines(const uint8_t* line, int64_t depth, Value value, float* to) {
  for (int64_t k = 0; k < depth; k += 2, line += 64)
    for (int64_t at = 0; at < 64; ++at) {
      const int64_t lane = at / 8 % 2 * 16 + (at / 16 * 8 + at % 8) / 2;
      to[(k + at % 2) * PANEL + lane] = value(line[at]);
    }
}

float float8(uint8_t bits) {  // e4m3fn: bias 7, no infinities, 0x7f is NaN
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                             : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) size = NAN;
  return bits & 0x80 ? -size : size;
}

#ifdef RIDGELINE_LINEAR_AVX512
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
  static void unpack(const uint8_t* panel, int64_t depth, float* to) {
    unpack_lines(panel, depth, [](uint8_t b) { return static_cast<float>(int8_t(b)); }, to);
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
  static void unpack(const uint8_t* panel, int64_t depth, float* to) {
    unpack_lines(panel, depth, float8, to);
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
