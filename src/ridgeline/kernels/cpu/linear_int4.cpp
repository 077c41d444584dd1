// Linear layers with 4-bit weights in groups along the depth. Arithmetic: linear_panels.h.
//
// A 64-byte line holds four depths of 32 outputs as 32 words of 16 bits. Nibble n of word w is the
// weight of output 16 (n % 2) + w / 2 at depth 2 (n / 2) + w % 2, stored as q + 8 in 0 … 15. Shifted
// right by 4 n, a word's low bits are the index of a table of bf16; the table is 32 long, so its
// second half repeats the first and the next nibble's lowest bit does not matter.
#include "formats.h"

namespace ridgeline::linear {
namespace {

struct Int4 {
  static constexpr bool WIDE = false, PACKED = true;
  static constexpr int64_t STEP = 4, BYTES = 64;
  // The weights of a nibble that begins at bit `from` of each word.
  static Floats nibbles(Words words, int from) {
#if defined(__AVX512F__)
    const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_ps((__m512i)(words >> from), table);
#else  // q + 8 without its highest bit is q's own four bits
    return __builtin_convertvector((words ^ int32_t(0x88888888)) << (28 - from) >> 28, Floats);
#endif
  }
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS / 2; ++i) {
      const auto words = load_vector<Words>(from + i * sizeof(Words));
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        sink(n / 2 * 2, n % 2 * (VECTORS / 2) + i, nibbles(words, 4 * n));
        sink(n / 2 * 2 + 1, n % 2 * (VECTORS / 2) + i, nibbles(words, 4 * n + 16));
      }
    }
  }
#ifdef RIDGELINE_LINEAR_AVX512
  __m512i table;
  Int4() {
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; ++i) values[i] = rounded(static_cast<float>(i % 16 - 8));
    table = _mm512_load_si512(values);
  }
  void load(const uint8_t* from, __m512i (*to)[2]) const {
    const __m512i words = _mm512_loadu_si512(from);
    to[0][0] = _mm512_permutexvar_epi16(words, table);
    to[0][1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
    to[1][0] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
    to[1][1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
  }
#endif
};

Tensor linear_int4(const Tensor& x, const Tensor& panels, const Tensor& scales,
                   const std::optional<Tensor>& zeros, const std::optional<Tensor>& bias,
                   int64_t outputs, bool portable) {
  STD_TORCH_CHECK(panels.scalar_type() == ScalarType::Byte, "linear_int4: panels must be uint8");
  return finished(operands(x, panels, scales, zeros, bias, outputs, panels.size(1) * 4),
                  share_int4(panels.scalar_type(), x.scalar_type(), portable));
}

}  // namespace

Share share_int4(ScalarType panels, ScalarType x, bool portable) {
  return panels == ScalarType::Byte ? share_of<Int4>(x, portable) : nullptr;
}

[[maybe_unused]] static const bool known = add_format(share_int4);

}  // namespace ridgeline::linear

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("linear_int4", TORCH_BOX(&ridgeline::linear::linear_int4));
}
