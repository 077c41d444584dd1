// Linear layers with packed weights: what is common to all weight formats.
//
// A weight [outputs, depth] is cut into panels of 32 outputs. A panel holds its weights in the
// order in which they are multiplied, so that it is read from memory once, front to back:
//
//   16-bit and smaller   [depth / 2][32 outputs][2]   pairs along the depth, as vdpbf16ps takes them
//   32-bit, fp16         [depth][32 outputs]
//
// Formats below 16 bits shuffle bytes within one 64-byte line on top of this (see their files).
// Along the depth, every `group` weights of an output may share a scale and a zero point:
//
//   out[m, o] = bias[o] + Σ_g scale[o, g] · (Σ_{k in g} x[m, k] q[o, k] − zero[o, g] Σ_{k in g} x[m, k])
//
// Products are exact in float32 (both factors have at most 8 significant bits, or x is float32),
// sums are float32 in the order of k. That order does not depend on the number of rows, so a row's
// result is the same bit by bit, alone or in a batch.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace ridgeline::linear {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t PANEL = 32;
constexpr int64_t ROWS_AT_ONCE = 192;  // of x, so that they stay in the cache while panels pass

// Rows of x that were rounded to bytes (linear_w8a8.cpp).
struct Levels {
  uint8_t* bytes;  // [rows, stride]
  float* steps;    // [rows]
  int64_t stride;
};

struct Job {
  const void* x;  // [rows, depth], bf16 bits or float
  void* out;      // [rows, outputs], as x
  const uint8_t* panels;
  int64_t panel_bytes;
  const void* scales;  // [panels, groups, 32] float or bf16; null: all 1
  bool short_scales;   // bf16
  const int8_t* zeros;  // [panels, groups, 32]; null: all 0
  const float* bias;    // [outputs] or null
  const float* sums;    // [rows, groups] of x, where there are zeros
  Levels levels;        // x itself, where it is rounded to bytes
  const int32_t* offsets;  // [panels · 32], beside these
  int64_t rows, depth, outputs, group;

  int64_t groups() const { return depth / group; }
  int64_t num_panels() const { return (outputs + PANEL - 1) / PANEL; }
};

inline float widened(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint16_t rounded(float value) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float read(const uint16_t* x) { return widened(*x); }
inline float read(const float* x) { return *x; }
inline void write(uint16_t* out, float value) { *out = rounded(value); }
inline void write(float* out, float value) { *out = value; }

// Σ x over each group, which zero points are multiplied by.
template <class X>
std::vector<float> group_sums(const Job& job) {
  const int64_t groups = job.groups();
  std::vector<float> sums(job.rows * groups);
  torch::stable::parallel_for(0, job.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const X* x = static_cast<const X*>(job.x) + row * job.depth;
      for (int64_t g = 0; g < groups; ++g) {
        float lanes[16] = {};
        for (int64_t k = 0; k < job.group; ++k) lanes[k % 16] += read(x + g * job.group + k);
        float sum = 0.0f;
        for (const float lane : lanes) sum += lane;
        sums[row * groups + g] = sum;
      }
    }
  });
  return sums;
}

// All rows of a job by panels begin … end, on the thread that calls it.
using Share = void (*)(const Job& job, int64_t begin, int64_t end);

// Calls body(part) with the job's rows in chunks as equal as can be, of at most `at_once`.
template <class X, class Body>
void in_chunks_of_rows(const Job& job, int64_t at_once, Body body) {
  const int64_t chunks = (job.rows + at_once - 1) / at_once;
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t row = c * job.rows / chunks;
    Job part = job;
    part.rows = (c + 1) * job.rows / chunks - row;
    part.x = static_cast<const X*>(job.x) + row * job.depth;
    part.out = static_cast<X*>(job.out) + row * job.outputs;
    if (job.zeros != nullptr) part.sums = job.sums + row * job.groups();
    body(part);
  }
}

}  // namespace ridgeline::linear

#include "linear_avx512.h"
#include "linear_vectors.h"

namespace ridgeline::linear {

template <class Weights, class X>
Share share_of(bool portable) {
#ifdef RIDGELINE_LINEAR_AVX512
  if (!portable) return share_avx512<Weights, X>;
#endif
  return share_vectors<Weights, X>;
}

// The same for an x of bf16 or float32; null: these weights do not take it.
template <class Weights>
Share share_of(ScalarType x, bool portable) {
  if (x == ScalarType::Float) return share_of<Weights, float>(portable);
  if constexpr (!Weights::WIDE)
    if (x == ScalarType::BFloat16) return share_of<Weights, uint16_t>(portable);
  return nullptr;
}

// By the types of panels and x; each in the file of its format. Null: not such panels or no such x.
Share share_dense(ScalarType panels, ScalarType x, bool portable);
Share share_int8(ScalarType panels, ScalarType x, bool portable);
Share share_int4(ScalarType panels, ScalarType x, bool portable);

// The operators' common rim: shapes are checked, x is padded to whole panels, out is made.
// `depth` is the padded depth that the panels hold.
struct Operands {
  Tensor x, out;
  Job job;
};

// Straight from the allocator: a call through the dispatcher takes microseconds.
inline Tensor empty_like_but_last(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end()), strides(shape.size());
  shape.back() = last;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  AtenTensorHandle made;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), strides.data(),
                               dtype, aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

// Of a weight; x, out and the number of rows are still to be said.
inline Job job_of(const Tensor& panels, const std::optional<Tensor>& scales,
                  const std::optional<Tensor>& zeros, const std::optional<Tensor>& bias,
                  int64_t outputs, int64_t depth) {
  STD_TORCH_CHECK(panels.is_contiguous() && panels.size(0) == (outputs + PANEL - 1) / PANEL,
                  "linear: the panels do not hold ", outputs, " outputs");
  Job job{};
  job.panels = static_cast<const uint8_t*>(panels.data_ptr());
  job.depth = depth;
  job.outputs = outputs;
  const int64_t stored = panels.numel() * static_cast<int64_t>(panels.element_size());
  job.panel_bytes = panels.size(0) == 0 ? 0 : stored / panels.size(0);
  job.group = depth;
  if (scales.has_value()) {
    STD_TORCH_CHECK(scales->is_contiguous(), "linear: scales must be contiguous");
    job.scales = scales->data_ptr();
    job.short_scales = scales->scalar_type() == ScalarType::BFloat16;
    job.group = depth / scales->size(1);
  }
  if (zeros.has_value()) job.zeros = static_cast<const int8_t*>(zeros->data_ptr());
  if (bias.has_value()) job.bias = static_cast<const float*>(bias->data_ptr());
  return job;
}

inline Operands operands(const Tensor& x, const Tensor& panels, const std::optional<Tensor>& scales,
                         const std::optional<Tensor>& zeros, const std::optional<Tensor>& bias,
                         int64_t outputs, int64_t depth) {
  const int64_t given = x.size(x.dim() - 1);
  STD_TORCH_CHECK(given <= depth, "linear: x has ", given, " features, the weight ", depth);
  Operands all{x, empty_like_but_last(x, outputs),
               job_of(panels, scales, zeros, bias, outputs, depth)};
  if (given != depth)
    all.x = torch::stable::pad(x, {0, depth - given}, "constant", 0.0);
  if (!all.x.is_contiguous()) all.x = torch::stable::contiguous(all.x);
  all.job.x = all.x.data_ptr();
  all.job.out = all.out.data_ptr();
  all.job.rows = given == 0 ? 0 : x.numel() / given;
  return all;
}

// Runs the job.
inline Tensor finished(Operands all, Share share) {
  STD_TORCH_CHECK(share != nullptr,
                  "linear: x must be float32 or bfloat16, for 32-bit weights float32");
  Job& job = all.job;
  if (job.rows == 0 || job.outputs == 0) return all.out;
  std::vector<float> sums;
  if (job.zeros != nullptr)
    sums = all.x.scalar_type() == ScalarType::Float ? group_sums<float>(job)
                                                    : group_sums<uint16_t>(job);
  job.sums = sums.data();
  torch::stable::parallel_for(0, job.num_panels(), 1,
                              [&](int64_t begin, int64_t end) { share(job, begin, end); });
  return all.out;
}

}  // namespace ridgeline::linear
