// What the operators of attention over a KV cache in blocks are given, checked; attention.h computes.

#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>

#include "packing.h"

namespace ridgeline {
namespace {  // every source has its own, compiled into its loops

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Pack = void (*)(const void* const* rows, int count, int size, word* to,
                      const void* const* next);

// What the operator was given.
struct Problem {
  const char* queries;
  char* out;
  ScalarType query_type;
  int64_t token_stride, head_stride;  // of the queries, in elements
  const char *keys, *values;
  ScalarType stored_type;
  const float *key_scales, *value_scales;    // of each slot and head, or null
  const float *key_factors, *value_factors;  // of each head, or null
  const float* sinks;                        // or null
  const int32_t *starts, *lengths, *tables;
  int64_t table_stride;
  int heads, kv_heads, group, block, size;
  float scale, softcap;  // softcap 0: none
  int window;            // 0: all
  int64_t row_bytes;     // of a stored key or value
  Pack pack_keys, pack_values;
};

// The functions that pack what is stored into what is multiplied: bf16 for queries in bf16 where
// the CPU multiplies them and they hold what is stored exactly, else floats.
template <class Element, class Stored>
bool packed_from(Problem& p) {
  p.pack_keys = pack_keys<Element, Stored>;
  p.pack_values = pack_values<Element, Stored>;
  return kWide<Element> > 1;
}

template <class Stored>
bool packed_small(Problem& p) {
#ifdef RIDGELINE_BF16_DOT
  if (p.query_type == ScalarType::BFloat16) return packed_from<bf16, Stored>(p);
#endif
  return packed_from<float, Stored>(p);
}

bool choose_packing(Problem& p) {
  switch (p.stored_type) {
    case ScalarType::Float: return packed_from<float, float>(p);
    case ScalarType::Half: return packed_from<float, half>(p);
    case ScalarType::BFloat16: return packed_small<bf16>(p);
    case ScalarType::Char: return packed_small<int8_t>(p);
    case ScalarType::Float8_e4m3fn: return packed_small<fp8>(p);
    default: STD_TORCH_CHECK(false, "paged_attention: a cache of an unknown type");
  }
  return false;
}

// A wrong block number would read foreign memory.
void check_tables(const Problem& p, int sequences, int64_t tokens, int64_t blocks, int64_t most) {
  STD_TORCH_CHECK(p.starts[0] == 0 && p.starts[sequences] <= tokens,
                  "paged_attention: query_starts do not fit the queries");
  for (int s = 0; s < sequences; ++s) {
    const int queries = p.starts[s + 1] - p.starts[s];
    STD_TORCH_CHECK(queries >= 0 && (queries == 0 || p.lengths[s] >= queries),
                    "paged_attention: a sequence with more queries than context");
    if (queries == 0) continue;
    const int first = p.window > 0 ? std::max(0, p.lengths[s] - queries - p.window + 1) : 0;
    STD_TORCH_CHECK((p.lengths[s] + p.block - 1) / p.block <= most,
                    "paged_attention: a context longer than its block table");
    for (int i = first / p.block; i < (p.lengths[s] + p.block - 1) / p.block; ++i) {
      const int32_t block = p.tables[s * p.table_stride + i];
      STD_TORCH_CHECK(block >= 0 && block < blocks, "paged_attention: block ", block, " of ",
                      blocks);
    }
  }
}

// Where the scales of a cache's keys or values are: of each slot [N, KV, B], or of each head [KV].
struct Scales {
  const float *of_slots, *of_heads;  // or null
};
Scales scales_of(const std::optional<Tensor>& scales, const Tensor& cache) {
  if (!scales) return {nullptr, nullptr};
  const bool fixed = scales->dim() == 1;
  const int64_t wanted = fixed ? cache.size(1) : cache.numel() / cache.size(3);
  STD_TORCH_CHECK(scales->is_contiguous() && scales->numel() == wanted,
                  "paged_attention: scales [N, KV, B] or [KV]");
  const float* of = scales->const_data_ptr<float>();
  return fixed ? Scales{nullptr, of} : Scales{of, nullptr};
}

// Of queries of a type over one layer's cache; where the queries and the output lie, and which heads
// they have, is still to be said.
Problem over_cache(ScalarType type, const Tensor& keys, const Tensor& values,
                   const std::optional<Tensor>& key_scales,
                   const std::optional<Tensor>& value_scales, const Tensor& starts,
                   const Tensor& lengths, const Tensor& tables) {
  STD_TORCH_CHECK(keys.is_contiguous() && values.is_contiguous() && tables.stride(1) == 1,
                  "paged_attention: a contiguous cache and tables");
  STD_TORCH_CHECK(keys.dim() == 4 && keys.scalar_type() == values.scalar_type(),
                  "paged_attention: keys and values [N, KV, B, D] of one type");
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::BFloat16 ||
                      type == ScalarType::Half,
                  "paged_attention: queries in float32, bfloat16 or float16");
  Problem p{};
  p.query_type = type;
  p.keys = static_cast<const char*>(keys.data_ptr());
  p.values = static_cast<const char*>(values.data_ptr());
  p.stored_type = keys.scalar_type();
  const Scales of_keys = scales_of(key_scales, keys), of_values = scales_of(value_scales, values);
  p.key_scales = of_keys.of_slots;
  p.key_factors = of_keys.of_heads;
  p.value_scales = of_values.of_slots;
  p.value_factors = of_values.of_heads;
  p.starts = starts.const_data_ptr<int32_t>();
  p.lengths = lengths.const_data_ptr<int32_t>();
  p.tables = tables.const_data_ptr<int32_t>();
  p.table_stride = tables.stride(0);
  p.kv_heads = static_cast<int>(keys.size(1));
  p.block = static_cast<int>(keys.size(2));
  p.size = static_cast<int>(keys.size(3));
  p.row_bytes = static_cast<int64_t>(keys.element_size()) * p.size;
  return p;
}

}  // namespace
}  // namespace ridgeline
