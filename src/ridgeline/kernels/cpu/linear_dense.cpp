// Linear layers with bf16, float32 or float16 weights. Layout and arithmetic: linear_panels.h.
#include "formats.h"

namespace ridgeline::linear {
namespace {

#ifdef RIDGELINE_LINEAR_AVX512
using PairsBase = Pairs;
#else
struct PairsBase {
  static constexpr bool WIDE = false;
};
#endif

struct Bf16 : PairsBase {
  static void unpack(const uint8_t* panel, int64_t depth, float* to) {
    const auto* from = reinterpret_cast<const uint16_t*>(panel);
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t lane = 0; lane < PANEL; ++lane)
        to[k * PANEL + lane] = widened(from[(k / 2 * PANEL + lane) * 2 + k % 2]);
  }
};

struct Float {
  static constexpr bool WIDE = true, PACKED = false;
  static constexpr int64_t STEP = 1, BYTES = 128;
  static void unpack(const uint8_t* panel, int64_t depth, float* to) {
    std::memcpy(to, panel, depth * PANEL * sizeof(float));
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
  static void unpack(const uint8_t* panel, int64_t depth, float* to) {
    const auto* from = reinterpret_cast<const torch::headeronly::Half*>(panel);
    for (int64_t i = 0; i < depth * PANEL; ++i) to[i] = static_cast<float>(from[i]);
  }
#ifdef RIDGELINE_LINEAR_AVX512
  void load(const uint8_t* from, __m512 (*to)[2]) const {
    for (int i = 0; i < 2; ++i)
      to[0][i] = _mm512_cvtph_ps(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i)));
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
