// The nearest number on a grid of integers, of 16 numbers at once.

#pragma once

#include <cstdint>

#include "vector.h"

namespace ridgeline {

// The lowest and the highest level.
struct Levels {
  float lowest, highest;
};

inline Levels levels_of(int bits) {
  const auto half = static_cast<float>(1 << (bits - 1));
  return {-half, half - 1.0f};
}

// To an integer, ties to even; of numbers below 2^22 in magnitude.
inline floats to_integer(floats x) { return (x + 12582912.0f) - 12582912.0f; }

// (q − zero) · scale with the level q that is nearest to x.
inline floats nearest(floats x, floats scale, floats zero, Levels levels) {
  floats steps = x / scale + zero;
  steps = steps > levels.lowest ? steps : all(levels.lowest);
  steps = steps < levels.highest ? steps : all(levels.highest);
  return (to_integer(steps) - zero) * scale;
}

// Ones where a vector of n numbers has none, so that nothing is divided by 0.
inline floats padding(int n) {
  floats y{};
  for (int i = n; i < kLanes; ++i) y[i] = 1.0f;
  return y;
}

}  // namespace ridgeline
