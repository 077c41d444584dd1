// Root mean square normalisation of rows; see ../rms_norm.py.

#include <omp.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "vector.h"

namespace ridgeline {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
inline floats rounded(floats x) {
  T stored[kLanes];
  store(x, stored);
  return load(stored);
}
template <>
inline floats rounded<float>(floats x) {
  return x;
}

template <class T>
void normalise(const T* x, const T* weight, T* out, int size, float eps, float offset,
               bool round_first) {
  floats squares[4] = {};
  int d = 0;
  for (; d + 4 * kLanes <= size; d += 4 * kLanes)
    for (int i = 0; i < 4; ++i) {
      const floats a = load(x + d + i * kLanes);
      squares[i] = fused(a, a, squares[i]);
    }
  for (; d < size; d += kLanes) {
    const floats a = load(x + d, size - d);
    squares[0] = fused(a, a, squares[0]);
  }
  const float mean = sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / size;
  const float factor = 1.0f / std::sqrt(mean + eps);
  for (d = 0; d < size; d += kLanes) {
    floats a = load(x + d, size - d) * factor;
    if (round_first) a = rounded<T>(a);
    store(a * (load(weight + d, size - d) + offset), out + d, size - d);
  }
}

template <class T>
void run(const Tensor& x, const Tensor& weight, Tensor& out, double eps, double offset,
         bool round_first) {
  const int64_t size = weight.numel(), rows = x.numel() / size;
  const auto* from = static_cast<const T*>(x.data_ptr());
  const auto* scale = static_cast<const T*>(weight.data_ptr());
  auto* to = static_cast<T*>(out.data_ptr());
  const int threads = x.numel() < 64 * 1024 ? 1 : torch::stable::get_num_threads();
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row)
    normalise(from + row * size, scale, to + row * size, static_cast<int>(size),
              static_cast<float>(eps), static_cast<float>(offset), round_first);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset,
                bool round_first) {
  const ScalarType type = x.scalar_type();
  STD_TORCH_CHECK(x.is_contiguous() && weight.is_contiguous() && weight.dim() == 1 &&
                      x.dim() > 0 && x.size(x.dim() - 1) == weight.numel() &&
                      weight.scalar_type() == type,
                  "rms_norm: contiguous rows as long as the weight, of its type");
  Tensor out = torch::stable::empty_like(x);
  if (x.numel() == 0) return out;
  if (type == ScalarType::Float)
    run<float>(x, weight, out, eps, offset, round_first);
  else if (type == ScalarType::BFloat16)
    run<bf16>(x, weight, out, eps, offset, round_first);
  else if (type == ScalarType::Half)
    run<half>(x, weight, out, eps, offset, round_first);
  else
    STD_TORCH_CHECK(false, "rms_norm: float32, bfloat16 or float16");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) { m.impl("rms_norm", TORCH_BOX(&rms_norm)); }

}  // namespace ridgeline
