// How keys and values get into a paged cache, quantised where it is; see ../paged_attention.py. The
// writing is compiled once, in cache_write.cpp.

#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>

namespace ridgeline {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

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

// Stores one key or value.
using Write = void (*)(const void* given, const Shelf& shelf, int64_t slot, int64_t head);

// Null for types that cannot be stored.
Write writer_of(ScalarType given, ScalarType stored);

// The row of a token's head in a cache [N, heads, block, D]; `at` is the token's slot.
inline int64_t row_of(int64_t at, int64_t head, int64_t heads, int64_t block) {
  return (at / block * heads + head) * block + at % block;
}

}  // namespace ridgeline
