// The operators of the elementwise part of a gated MLP; see ../gated_activation.py.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "gated_activation.h"
#include "team.h"

namespace ridgeline {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class Activation, class T>
void run(const Tensor& gate, const Tensor& up, Tensor& out) {
  const int64_t size = gate.size(1), rows = gate.size(0);
  const auto* gates = static_cast<const T*>(gate.data_ptr());
  const auto* ups = static_cast<const T*>(up.data_ptr());
  auto* to = static_cast<T*>(out.data_ptr());
  const int64_t gate_stride = gate.stride(0), up_stride = up.stride(0);
  constexpr int64_t piece = 1024;  // so that one long row occupies all threads, too
  const int64_t pieces = (size + piece - 1) / piece;
  const int threads = rows * size < 16 * piece ? 1 : torch::stable::get_num_threads();
  in_team(threads, [&](Member member) {
    const Range own = member.own(rows * pieces);
    for (int64_t i = own.begin; i < own.end; ++i) {
      const int64_t row = i / pieces, first = i % pieces * piece;
      const int64_t last = std::min(size, first + piece);
      gate_row<Activation>(gates + row * gate_stride, ups + row * up_stride, to + row * size,
                           first, last);
    }
  });
}

template <class Activation>
Tensor gated(const Tensor& gate, const Tensor& up) {
  const ScalarType type = gate.scalar_type();
  STD_TORCH_CHECK(gate.dim() == 2 && up.dim() == 2 && gate.stride(1) == 1 && up.stride(1) == 1 &&
                      gate.size(0) == up.size(0) && gate.size(1) == up.size(1) &&
                      up.scalar_type() == type,
                  "gated activation: two matrices of one shape and type with dense rows");
  Tensor out = torch::stable::new_empty(gate, {gate.size(0), gate.size(1)});
  if (type == ScalarType::Float)
    run<Activation, float>(gate, up, out);
  else if (type == ScalarType::BFloat16)
    run<Activation, bf16>(gate, up, out);
  else if (type == ScalarType::Half)
    run<Activation, half>(gate, up, out);
  else
    STD_TORCH_CHECK(false, "gated activation: float32, bfloat16 or float16");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("silu_mul", TORCH_BOX(&gated<Silu>));
  m.impl("gelu_tanh_mul", TORCH_BOX(&gated<GeluTanh>));
}

}  // namespace ridgeline
