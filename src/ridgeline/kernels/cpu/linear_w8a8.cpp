// Linear layers with int8 weights and activations that are rounded to int8 (W8A8).
//
//   a = max |x[m, :]| / 127.5, or one for all rows        xq = clamp(round(x / a), −128, 127)
//   out[m, o] = a · s[o] · Σ_k xq[m, k] q[o, k] + b[o]
//
// A panel holds [depth / 4][32 outputs][4]. Where the CPU multiplies four bytes at once, sums of
// products are exact in int32: x86 multiplies unsigned by signed bytes, so rows are kept as xq + 128
// and 128 Σ_k q[o, k], which `sums` holds, is taken off at the end; ARM takes them as they are.
// Other CPUs multiply and add them as floats (linear_vectors.h): exact up to 2^24, then rounded.
#include "linear_panels.h"

#include <cmath>

namespace ridgeline::linear {
namespace {

// Sums of the products of four bytes each, added to `sums`; x has the rows of one factor.
#if defined(__AVX512VNNI__)
#define RIDGELINE_BYTE_DOT
constexpr int OFFSET = 128, ROWS_OF_BYTES = 12;
inline Words add_dots(Words sums, Words x, Words weights) {
  return (Words)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)x, (__m512i)weights);
}
#elif defined(__AVXVNNI__)
#define RIDGELINE_BYTE_DOT
constexpr int OFFSET = 128, ROWS_OF_BYTES = 2;
inline Words add_dots(Words sums, Words x, Words weights) {
  return (Words)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)x, (__m256i)weights);
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define RIDGELINE_BYTE_DOT
constexpr int OFFSET = 0, ROWS_OF_BYTES = 2;
inline Words add_dots(Words sums, Words x, Words weights) {
  return (Words)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)x);
}
#endif

struct Bytes {
  const uint8_t* x;     // [rows, depth], xq + OFFSET
  const float* steps;   // [rows]: a
  const int8_t* panels;
  const float* scales;  // [panels · 32]
  const int32_t* sums;  // [panels · 32]: 128 Σ q
  const float* bias;    // [outputs] or null
  int64_t rows, depth, outputs;

  int64_t num_panels() const { return (outputs + PANEL - 1) / PANEL; }
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

// Gives each level of a row of `given` numbers to put(row, k, level), zeros up to `depth`.
// `fixed`: the step of all rows; 0: each row has its own.
template <class X, class Put>
void round_rows(const X* x, int64_t rows, int64_t given, int64_t depth, float fixed, float* steps,
                Put put) {
  torch::stable::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const X* from = x + row * given;
      const float step = fixed > 0.0f ? fixed : largest_of(from, given) / 127.5f;
      steps[row] = step;
      for (int64_t k = 0; k < given; ++k)
        put(row, k, std::clamp(std::nearbyintf(read(from + k) / step), -128.0f, 127.0f));
      for (int64_t k = given; k < depth; ++k) put(row, k, 0.0f);
    }
  });
}

#ifdef RIDGELINE_BYTE_DOT
template <class X>
void finish(const Bytes& job, int64_t row, int64_t panel, const int32_t* totals, X* out) {
  const int64_t first = panel * PANEL, count = std::min(PANEL, job.outputs - first);
  for (int64_t lane = 0; lane < count; ++lane) {
    const auto sum = static_cast<float>(totals[lane] - (OFFSET == 0 ? 0 : job.sums[first + lane]));
    const float bias = job.bias == nullptr ? 0.0f : job.bias[first + lane];
    write(out + row * job.outputs + first + lane,
          sum * (job.steps[row] * job.scales[first + lane]) + bias);
  }
}

// R rows by a panel.
template <class X, int R>
void rows_by_panel(const Bytes& job, int64_t panel, int64_t row, X* out) {
  Words sums[R][VECTORS] = {};
  const uint8_t* x = job.x + row * job.depth;
  const int8_t* from = job.panels + panel * job.depth * PANEL;
  for (const uint8_t* end = x + job.depth; x != end; x += 4, from += 4 * PANEL) {
    Words weights[VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) weights[i] = load_vector<Words>(from + i * sizeof(Words));
    __builtin_prefetch(from + FETCHED);
    __builtin_prefetch(from + FETCHED + 64);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * job.depth, sizeof four);
      const Words factor = four - Words{};
#pragma GCC unroll 8
      for (int i = 0; i < VECTORS; ++i) sums[r][i] = add_dots(sums[r][i], factor, weights[i]);
    }
  }
  for (int r = 0; r < R; ++r) finish(job, row + r, panel, reinterpret_cast<int32_t*>(sums[r]), out);
}

template <class X, int R = ROWS_OF_BYTES>
void block_by_panel(const Bytes& job, int64_t panel, int64_t row, int64_t rows, X* out) {
  if constexpr (R > 1)
    if (rows < R) return block_by_panel<X, R - 1>(job, panel, row, rows, out);
  rows_by_panel<X, R>(job, panel, row, out);
}

template <class X>
void multiply_bytes(Bytes job, const X* x, int64_t given, float step, X* out) {
  std::vector<uint8_t> levels(job.rows * job.depth);
  std::vector<float> steps(job.rows);
  round_rows(x, job.rows, given, job.depth, step, steps.data(),
             [&](int64_t row, int64_t k, float level) {
               levels[row * job.depth + k] = static_cast<uint8_t>(static_cast<int>(level) + OFFSET);
             });
  const int64_t rows = job.rows;
  for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
    job.x = levels.data() + row * job.depth;
    job.steps = steps.data() + row;
    job.rows = std::min(ROWS_AT_ONCE, rows - row);
    const int64_t blocks = (job.rows + ROWS_OF_BYTES - 1) / ROWS_OF_BYTES;
    torch::stable::parallel_for(0, job.num_panels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel)
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t first = b * job.rows / blocks, last = (b + 1) * job.rows / blocks;
          block_by_panel<X>(job, panel, first, last - first, out + row * job.outputs);
        }
    });
  }
}
#endif

// The format of a panel, for linear_vectors.h.
struct Fours {
  static constexpr bool WIDE = false;
  static constexpr int64_t STEP = 4, BYTES = 128;
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) {
      const auto fours = load_vector<Words>(from + i * sizeof(Words));
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        sink(k, i, __builtin_convertvector(fours << (24 - 8 * k) >> 24, Floats));
    }
  }
};

template <class X>
void multiply_floats(const Bytes& bytes, const X* x, int64_t given, float step, X* out) {
  std::vector<float> levels(bytes.rows * bytes.depth), steps(bytes.rows);
  std::vector<float> totals(bytes.rows * bytes.outputs);
  round_rows(x, bytes.rows, given, bytes.depth, step, steps.data(),
             [&](int64_t row, int64_t k, float level) { levels[row * bytes.depth + k] = level; });
  Job job{};
  job.x = levels.data();
  job.out = totals.data();
  job.panels = reinterpret_cast<const uint8_t*>(bytes.panels);
  job.panel_bytes = bytes.depth * PANEL;
  job.scales = bytes.scales;
  job.rows = bytes.rows;
  job.depth = job.group = bytes.depth;
  job.outputs = bytes.outputs;
  torch::stable::parallel_for(0, job.num_panels(), 1, [&](int64_t begin, int64_t end) {
    share_vectors<Fours, float>(job, begin, end);
  });
  torch::stable::parallel_for(0, bytes.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < bytes.outputs; ++i) {
        const float bias = bytes.bias == nullptr ? 0.0f : bytes.bias[i];
        write(out + row * bytes.outputs + i, totals[row * bytes.outputs + i] * steps[row] + bias);
      }
  });
}

template <class X>
void run(const Bytes& job, const void* x, int64_t given, float step, void* out, bool portable) {
#ifdef RIDGELINE_BYTE_DOT
  if (!portable)
    return multiply_bytes(job, static_cast<const X*>(x), given, step, static_cast<X*>(out));
#endif
  multiply_floats(job, static_cast<const X*>(x), given, step, static_cast<X*>(out));
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
    run<float>(job, rows.data_ptr(), given, fixed, out.data_ptr(), portable);
  } else {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16, "linear: x is float32 or bfloat16");
    run<uint16_t>(job, rows.data_ptr(), given, fixed, out.data_ptr(), portable);
  }
  return out;
}

}  // namespace
}  // namespace ridgeline::linear

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("linear_w8a8", TORCH_BOX(&ridgeline::linear::linear_w8a8));
}
