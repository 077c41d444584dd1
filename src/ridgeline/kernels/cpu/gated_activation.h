// The elementwise part of a gated MLP, for one stretch of a row; see ../gated_activation.py.

#pragma once

#include <algorithm>

#include "vector.h"

namespace ridgeline {

struct Silu {
  static floats of(floats x) { return x / (exponential(-x) + 1.0f); }
};
struct GeluTanh {  // with (1 + tanh z) / 2 = 1 / (1 + e^−2z), which does not cancel
  static floats of(floats x) {
    const floats inner = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
    return x / (exponential(inner * -2.0f) + 1.0f);
  }
};

// Elements first … last of a row; `to` may be `gates`. What is activated is rounded, as a model
// computes it in two steps.
template <class Activation, class T>
inline void gate_row(const T* gates, const T* ups, T* to, int64_t first, int64_t last) {
  for (int64_t d = first; d < last; d += kLanes) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, last - d));
    T active[kLanes];
    store(Activation::of(load(gates + d, n)), active);
    store(load(active) * load(ups + d, n), to + d, n);
  }
}

}  // namespace ridgeline
