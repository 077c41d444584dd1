// The operator that stores new keys and values in a paged cache; see ../paged_attention.py.

#include <omp.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "cache_write.h"

namespace ridgeline {
namespace {

void write_cache(const Tensor& keys, const Tensor& values, const Tensor& key_cache,
                 const Tensor& value_cache, const std::optional<Tensor>& key_scales,
                 const std::optional<Tensor>& value_scales, const Tensor& slots) {
  const ScalarType stored = key_cache.scalar_type();
  const Write write = writer_of(keys.scalar_type(), stored);
  STD_TORCH_CHECK(write && stored == value_cache.scalar_type() &&
                      keys.scalar_type() == values.scalar_type(),
                  "write_cache: keys and values of one float type, and a cache of one known type");
  STD_TORCH_CHECK(key_cache.is_contiguous() && value_cache.is_contiguous() &&
                      keys.stride(2) == 1 && values.stride(2) == 1,
                  "write_cache: a contiguous cache and dense heads");
  const int64_t tokens = keys.size(0), heads = key_cache.size(1), block = key_cache.size(2);
  STD_TORCH_CHECK(keys.dim() == 3 && keys.size(1) == heads && keys.size(2) == key_cache.size(3) &&
                      slots.numel() == tokens,
                  "write_cache: keys [T, KV, D] and T slots");
  const Shelf of_keys = shelf_of(key_cache, key_scales);
  const Shelf of_values = shelf_of(value_cache, value_scales);
  const auto given = [](const Tensor& rows, int64_t token, int64_t head) {
    const int64_t offset = token * rows.stride(0) + head * rows.stride(1);
    return static_cast<const char*>(rows.data_ptr()) + offset * rows.element_size();
  };
  const int64_t* at = slots.const_data_ptr<int64_t>();
  const int64_t most = key_cache.size(0) * block;
  for (int64_t t = 0; t < tokens; ++t)
    STD_TORCH_CHECK(at[t] < most, "write_cache: slot ", at[t], " of ", most);
  const int threads = keys.numel() < 64 * 1024 ? 1 : torch::stable::get_num_threads();
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t t = 0; t < tokens; ++t) {
    if (at[t] < 0) continue;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t slot = row_of(at[t], head, heads, block);
      write(given(keys, t, head), of_keys, slot, head);
      write(given(values, t, head), of_values, slot, head);
    }
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) { m.impl("write_cache", TORCH_BOX(&write_cache)); }

}  // namespace ridgeline
