// Root mean square normalisation of one row; see ../rms_norm.py.

#pragma once

#include "vector.h"

namespace ridgeline {

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
inline void normalise(const T* x, const T* weight, T* out, int size, float eps, float offset,
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

}  // namespace ridgeline
