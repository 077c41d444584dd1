// Linear layers with int8 weights and activations that are rounded to int8 (W8A8).
//
//   a = max |x[m, :]| / 127.5, or one for all rows        xq = clamp(round(x / a), −128, 127)
//   out[m, o] = a · s[o] · Σ_k xq[m, k] q[o, k] + b[o]
//
// Sums of products are exact in int32. vpdpbusd multiplies unsigned by signed bytes, so rows are
// kept as xq + 128 and 128 Σ_k q[o, k], which `sums` holds, is taken off at the end. A panel holds
// [depth / 4][32 outputs][4].
#include "linear_panels.h"

#include <cmath>

namespace ridgeline::linear {
namespace {

struct Bytes {
  const uint8_t* x;     // [rows, depth], xq + 128
  const float* steps;   // [rows]: a
  const int8_t* panels;
  const float* scales;  // [panels · 32]
  const int32_t* sums;  // [panels · 32]: 128 Σ q
  const float* bias;    // [outputs] or null
  int64_t rows, depth, outputs;
};

template <class X>
float largest_of(const X* from, int64_t given) {
  float lanes[32] = {};  // so that the compiler makes vectors of it
  int64_t k = 0;
  for (; k + 32 <= given; k += 32)
    for (int64_t i = 0; i < 32; ++i) {
      const float size = std::fabs(read(from + k + i));
      lanes[i] = size > lanes[i] ? size : lanes[i];
    }
  for (; k < given; ++k) lanes[0] = std::max(lanes[0], std::fabs(read(from + k)));
  return std::max(1e-12f, *std::max_element(lanes, lanes + 32));
}

// `fixed`: the step of all rows; 0: each row has its own.
template <class X>
void round_rows(const X* x, int64_t rows, int64_t given, int64_t depth, float fixed, uint8_t* to,
                float* steps) {
  torch::stable::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const X* from = x + row * given;
      const float step = fixed > 0.0f ? fixed : largest_of(from, given) / 127.5f;
      steps[row] = step;
      uint8_t* out = to + row * depth;
      for (int64_t k = 0; k < given; ++k) {
        const float level = std::nearbyintf(read(from + k) / step);
        out[k] = static_cast<uint8_t>(static_cast<int>(std::clamp(level, -128.0f, 127.0f)) + 128);
      }
      std::fill(out + given, out + depth, uint8_t{128});
    }
  });
}

template <class X>
void finish(const Bytes& job, int64_t row, int64_t panel, const int32_t* totals, X* out) {
  const int64_t first = panel * PANEL, count = std::min(PANEL, job.outputs - first);
  for (int64_t lane = 0; lane < count; ++lane) {
    const auto sum = static_cast<float>(totals[lane] - job.sums[first + lane]);
    const float bias = job.bias == nullptr ? 0.0f : job.bias[first + lane];
    write(out + row * job.outputs + first + lane,
          sum * (job.steps[row] * job.scales[first + lane]) + bias);
  }
}

#if defined(RIDGELINE_LINEAR_AVX512) && defined(__AVX512VNNI__)
template <class X, int R>
void rows_by_panel(const Bytes& job, const int8_t* from, int64_t panel, int64_t row, int64_t rows,
                   X* out) {
  if constexpr (R > 1) {
    if (rows < R) return rows_by_panel<X, R - 1>(job, from, panel, row, rows, out);
  }
  __m512i sums[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
  const uint8_t* x = job.x + row * job.depth;
  for (const uint8_t* end = x + job.depth; x != end; x += 4, from += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(from + AHEAD), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + AHEAD + 64), _MM_HINT_T0);
    const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + 64);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * job.depth, sizeof four);
      const __m512i factor = _mm512_set1_epi32(four);
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], factor, first);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], factor, second);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    alignas(64) int32_t totals[PANEL];
    _mm512_store_si512(totals, sums[r][0]);
    _mm512_store_si512(totals + 16, sums[r][1]);
    finish(job, row + r, panel, totals, out);
  }
}

template <class X>
void multiply_bytes(const Bytes& job, int64_t begin, int64_t end, X* out) {
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t row = 0; row < job.rows; row += MOST_ROWS)
      rows_by_panel<X, MOST_ROWS>(job, job.panels + panel * job.depth * PANEL, panel, row,
                                  job.rows - row, out);
}
#endif

template <class X>
void multiply_bytes_portable(const Bytes& job, int64_t begin, int64_t end, X* out) {
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t row = 0; row < job.rows; ++row) {
      const uint8_t* x = job.x + row * job.depth;
      const int8_t* from = job.panels + panel * job.depth * PANEL;
      int32_t totals[PANEL] = {};
      for (int64_t k = 0; k < job.depth; k += 4)
        for (int64_t lane = 0; lane < PANEL; ++lane, from += 4)
          for (int64_t i = 0; i < 4; ++i) totals[lane] += int32_t{x[k + i]} * int32_t{from[i]};
      finish(job, row, panel, totals, out);
    }
}

template <class X>
void run(Bytes job, const X* x, int64_t given, float step, X* out, bool portable) {
  std::vector<uint8_t> rounded_rows(job.rows * job.depth);
  std::vector<float> steps(job.rows);
  round_rows(x, job.rows, given, job.depth, step, rounded_rows.data(), steps.data());
  const int64_t panels = (job.outputs + PANEL - 1) / PANEL;
  const int64_t rows = job.rows;
  for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
    job.x = rounded_rows.data() + row * job.depth;
    job.steps = steps.data() + row;
    job.rows = std::min(ROWS_AT_ONCE, rows - row);
    torch::stable::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
#if defined(RIDGELINE_LINEAR_AVX512) && defined(__AVX512VNNI__)
      if (!portable) return multiply_bytes(job, begin, end, out + row * job.outputs);
#endif
      multiply_bytes_portable(job, begin, end, out + row * job.outputs);
    });
  }
}

Tensor linear_w8a8(const Tensor& x, const Tensor& panels, const Tensor& scales, const Tensor& sums,
                   const std::optional<Tensor>& bias, int64_t outputs, std::optional<double> step,
                   bool portable) {
  const int64_t given = x.size(x.dim() - 1), depth = panels.size(1) * 4;
  STD_TORCH_CHECK(!step || *step > 0.0, "linear: a step of inputs is above 0");
  const auto fixed = static_cast<float>(step.value_or(0.0));
  STD_TORCH_CHECK(given <= depth && given > depth - 4, "linear: x has ", given,
                  " features, the weight ", depth);
  const Tensor rows = x.is_contiguous() ? x : torch::stable::contiguous(x);
  Tensor out = empty_like_but_last(x, outputs);
  const Bytes job{nullptr,
                  nullptr,
                  static_cast<const int8_t*>(panels.data_ptr()),
                  static_cast<const float*>(scales.data_ptr()),
                  static_cast<const int32_t*>(sums.data_ptr()),
                  bias.has_value() ? static_cast<const float*>(bias->data_ptr()) : nullptr,
                  x.numel() / given,
                  depth,
                  outputs};
  if (x.scalar_type() == ScalarType::Float) {
    run(job, static_cast<const float*>(rows.data_ptr()), given, fixed,
        static_cast<float*>(out.data_ptr()), portable);
  } else {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16, "linear: x is float32 or bfloat16");
    run(job, static_cast<const uint16_t*>(rows.data_ptr()), given, fixed,
        static_cast<uint16_t*>(out.data_ptr()), portable);
  }
  return out;
}

}  // namespace
}  // namespace ridgeline::linear

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("linear_w8a8", TORCH_BOX(&ridgeline::linear::linear_w8a8));
}
