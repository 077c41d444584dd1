// Stores one key or value in a paged cache, quantised where that is; see ../paged_attention.py.

#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <type_traits>

#include "vector.h"

namespace ridgeline {
namespace {  // every source has its own, compiled into its loops

using torch::headeronly::ScalarType;

// Nearest e4m3fn, ties to even; the caller keeps |x| ≤ 448.
inline void put(float x, fp8* to) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint8_t sign = bits >> 31 ? 0x80 : 0;
  bits &= 0x7fffffff;
  if (x != x) {
    to->bits = 0x7f;
  } else if (bits < (121u << 23)) {  // below 2^-6: steps of 2^-9, which a float of 2^14 counts
    const float magic = 16384.0f;
    float small;
    std::memcpy(&small, &bits, sizeof small);
    const float counted = small + magic;
    uint32_t steps;
    std::memcpy(&steps, &counted, sizeof steps);
    to->bits = static_cast<uint8_t>(sign | (steps & 0xf));
  } else {
    bits += 0x7ffff + ((bits >> 20) & 1);
    to->bits = static_cast<uint8_t>(sign | (((bits >> 20) - (120u << 3)) & 0x7f));
  }
}
inline void put(float x, int8_t* to) { *to = static_cast<int8_t>(std::nearbyint(x)); }

template <class Given, class Stored>
void copy_row(const Given* from, Stored* to, int size) {
  if constexpr (std::is_same_v<Given, Stored>)
    std::memcpy(to, from, size * sizeof(Stored));
  else
    for (int d = 0; d < size; d += kLanes) store(load(from + d, size - d), to + d, size - d);
}

// Returns the row's scale.
template <class Given, class Stored>
float quantise_row(const Given* from, Stored* to, int size, float most) {
  floats top{};
  for (int d = 0; d < size; d += kLanes) {
    const floats x = load(from + d, size - d);
    top = larger(x < 0.0f ? -x : x, top);
  }
  const float scale = std::max(largest(top), 1e-12f) / most;
  for (int d = 0; d < size; d += kLanes) {
    const floats x = load(from + d, size - d) / scale;
    for (int i = 0; i < std::min(kLanes, size - d); ++i) put(x[i], to + d + i);
  }
  return scale;
}

// Keys or values of one layer: [slots, size], and a scale for each where they are quantised.
struct Shelf {
  void* stored;
  float* scales;
  int size;
};

template <class Given, class Stored>
void write_row(const void* given, const Shelf& shelf, int64_t slot) {
  const auto* from = static_cast<const Given*>(given);
  auto* to = static_cast<Stored*>(shelf.stored) + slot * shelf.size;
  if constexpr (std::is_same_v<Stored, int8_t> || std::is_same_v<Stored, fp8>) {
    constexpr float most = std::is_same_v<Stored, fp8> ? 448.0f : 127.0f;
    shelf.scales[slot] = quantise_row(from, to, shelf.size, most);
  } else {
    copy_row(from, to, shelf.size);
  }
}

using Write = void (*)(const void* given, const Shelf& shelf, int64_t slot);

template <class Given>
Write writer_of(ScalarType stored) {
  switch (stored) {
    case ScalarType::Float: return write_row<Given, float>;
    case ScalarType::BFloat16: return write_row<Given, bf16>;
    case ScalarType::Half: return write_row<Given, half>;
    case ScalarType::Char: return write_row<Given, int8_t>;
    case ScalarType::Float8_e4m3fn: return write_row<Given, fp8>;
    default: return nullptr;
  }
}

// Null for types that cannot be stored.
Write writer_of(ScalarType given, ScalarType stored) {
  switch (given) {
    case ScalarType::Float: return writer_of<float>(stored);
    case ScalarType::BFloat16: return writer_of<bf16>(stored);
    case ScalarType::Half: return writer_of<half>(stored);
    default: return nullptr;
  }
}

// The row of a token's head in a cache [N, heads, block, D]; `at` is the token's slot.
inline int64_t row_of(int64_t at, int64_t head, int64_t heads, int64_t block) {
  return (at / block * heads + head) * block + at % block;
}

}  // namespace
}  // namespace ridgeline
