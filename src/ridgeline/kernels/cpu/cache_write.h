// Stores one key or value in a paged cache, quantised where that is; see ../paged_attention.py.

#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "vector.h"

namespace ridgeline {
namespace {  // every source has its own, compiled into its loops

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

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

// By a scale that is given: what lies beyond the levels becomes the outermost one, NaN stays NaN.
template <class Given, class Stored>
void round_row(const Given* from, Stored* to, int size, float scale, float least, float most) {
  for (int d = 0; d < size; d += kLanes) {
    const floats x = load(from + d, size - d) / scale;
    const floats inside = x < least ? all(least) : (x > most ? all(most) : x);
    for (int i = 0; i < std::min(kLanes, size - d); ++i) put(inside[i], to + d + i);
  }
}

// Keys or values of one layer: [slots, size], where they are quantised with a scale for each slot,
// which is written too, or one for each head, which is given.
struct Shelf {
  void* stored;
  float* of_slots;
  const float* of_heads;
  int size;
};
inline Shelf shelf_of(const Tensor& cache, const std::optional<Tensor>& scales) {
  const ScalarType stored = cache.scalar_type();
  const bool quantised = stored == ScalarType::Char || stored == ScalarType::Float8_e4m3fn;
  STD_TORCH_CHECK(quantised == scales.has_value(),
                  "a cache has scales where it is int8 or float8, and only there");
  Shelf shelf{cache.mutable_data_ptr(), nullptr, nullptr, static_cast<int>(cache.size(3))};
  if (!quantised) return shelf;
  const bool fixed = scales->dim() == 1;
  STD_TORCH_CHECK(scales->numel() == (fixed ? cache.size(1) : cache.numel() / cache.size(3)),
                  "a cache [N, KV, B, D] has scales [N, KV, B] or [KV]");
  if (fixed)
    shelf.of_heads = scales->const_data_ptr<float>();
  else
    shelf.of_slots = scales->mutable_data_ptr<float>();
  return shelf;
}

template <class Given, class Stored>
void write_row(const void* given, const Shelf& shelf, int64_t slot, int64_t head) {
  const auto* from = static_cast<const Given*>(given);
  auto* to = static_cast<Stored*>(shelf.stored) + slot * shelf.size;
  if constexpr (std::is_same_v<Stored, int8_t> || std::is_same_v<Stored, fp8>) {
    constexpr float most = std::is_same_v<Stored, fp8> ? 448.0f : 127.0f;
    constexpr float least = std::is_same_v<Stored, fp8> ? -448.0f : -128.0f;
    if (shelf.of_heads)
      round_row(from, to, shelf.size, shelf.of_heads[head], least, most);
    else
      shelf.of_slots[slot] = quantise_row(from, to, shelf.size, most);
  } else {
    copy_row(from, to, shelf.size);
  }
}

using Write = void (*)(const void* given, const Shelf& shelf, int64_t slot, int64_t head);

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
