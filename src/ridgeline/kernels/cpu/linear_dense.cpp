// Linear layers with bf16, float32 or float16 weights. Layout and arithmetic: linear_panels.h.
#include "formats.h"

namespace ridgeline::linear {
namespace {

#ifdef RIDGELINE_LINEAR_AVX512
using PairsBase = Pairs;
#else
struct PairsBase {
  static constexpr bool WIDE = false;
  static constexpr int64_t STEP = 2, BYTES = 128;
};
#endif

struct Bf16 : PairsBase {
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) {
      const auto pairs = load_vector<Words>(from + i * sizeof(Words));
      sink(0, i, as_floats(pairs << 16));
      sink(1, i, as_floats(pairs & int32_t(0xffff0000)));
    }
  }
};

struct Float {
  static constexpr bool WIDE = true, PACKED = false;
  static constexpr int64_t STEP = 1, BYTES = 128;
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) sink(0, i, load_vector<Floats>(from + i * sizeof(Floats)));
  }
#ifdef RIDGELINE_LINEAR_AVX512
  void load(const uint8_t* from, __m512 (*to)[2]) const {
    to[0][0] = _mm512_loadu_ps(from);
    to[0][1] = _mm512_loadu_ps(from + 64);
  }
#endif
};

struct Half {
  static constexpr bool WIDE = true, PACKED = false;
  static constexpr int64_t STEP = 1, BYTES = 64;
  static Floats widened_at(const uint8_t* from) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__) && defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(load_vector<uint16x4_t>(from)));
#else
    using Halves = uint16_t __attribute__((vector_size(LANES * 2)));
    const Words bits = __builtin_convertvector(load_vector<Halves>(from), Words);
    const Words size = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    // Exponents differ by 112; subnormals come out right as well, infinities and NaN are mended.
    const Floats finite = as_floats(size << 13) * 0x1p112f;
    const Words special = size >= 0x7c00 ? Words{} + 0x7f800000 : Words{};
    return as_floats(reinterpret_cast<Words>(finite) | special | sign);
#endif
  }
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) sink(0, i, widened_at(from + i * 2 * LANES));
  }
#ifdef RIDGELINE_LINEAR_AVX512
  void load(const uint8_t* from, __m512 (*to)[2]) const {
    for (int i = 0; i < 2; ++i) to[0][i] = widened_at(from + 32 * i);
  }
#endif
};

Tensor linear_dense(const Tensor& x, const Tensor& panels, const std::optional<Tensor>& bias,
                    int64_t outputs, bool portable) {
  const bool wide = panels.scalar_type() != ScalarType::BFloat16;
  const int64_t depth = panels.size(1) * (wide ? 1 : 2);
  return finished(operands(x, panels, std::nullopt, std::nullopt, bias, outputs, depth),
                  share_dense(panels.scalar_type(), x.scalar_type(), portable));
}

}  // namespace

Share share_dense(ScalarType panels, ScalarType x, bool portable) {
  switch (panels) {
    case ScalarType::BFloat16: return share_of<Bf16>(x, portable);
    case ScalarType::Float: return share_of<Float>(x, portable);
    case ScalarType::Half: return share_of<Half>(x, portable);
    default: return nullptr;
  }
}

[[maybe_unused]] static const bool known = add_format(share_dense);

}  // namespace ridgeline::linear

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("linear_dense", TORCH_BOX(&ridgeline::linear::linear_dense));
}
