// The operator of root mean square normalisation; see ../rms_norm.py.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "norm.h"
#include "team.h"

namespace ridgeline {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
void run(const Tensor& x, const Tensor& weight, Tensor& out, double eps, double offset,
         bool round_first) {
  const int64_t size = weight.numel(), rows = x.numel() / size;
  const auto* from = static_cast<const T*>(x.data_ptr());
  const auto* scale = static_cast<const T*>(weight.data_ptr());
  auto* to = static_cast<T*>(out.data_ptr());
  const int threads = x.numel() < 64 * 1024 ? 1 : torch::stable::get_num_threads();
  in_team(threads, [&](Member member) {
    const Range own = member.own(rows);
    for (int64_t row = own.begin; row < own.end; ++row)
      normalise(from + row * size, scale, to + row * size, static_cast<int>(size),
                static_cast<float>(eps), static_cast<float>(offset), round_first);
  });
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
