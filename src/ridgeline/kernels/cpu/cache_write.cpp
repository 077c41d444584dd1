// Stores new keys and values in a paged cache, and the operator that does it; see
// ../paged_attention.py.

#include "cache_write.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <type_traits>

#include "team.h"
#include "vector.h"

namespace ridgeline {
namespace {

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

template <class Given>
Write writer_to(ScalarType stored) {
  switch (stored) {
    case ScalarType::Float: return write_row<Given, float>;
    case ScalarType::BFloat16: return write_row<Given, bf16>;
    case ScalarType::Half: return write_row<Given, half>;
    case ScalarType::Char: return write_row<Given, int8_t>;
    case ScalarType::Float8_e4m3fn: return write_row<Given, fp8>;
    default: return nullptr;
  }
}

}  // namespace

Write writer_of(ScalarType given, ScalarType stored) {
  switch (given) {
    case ScalarType::Float: return writer_to<float>(stored);
    case ScalarType::BFloat16: return writer_to<bf16>(stored);
    case ScalarType::Half: return writer_to<half>(stored);
    default: return nullptr;
  }
}

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
  in_team(threads, [&](Member member) {
    const Range own = member.own(tokens);
    for (int64_t t = own.begin; t < own.end; ++t) {
      if (at[t] < 0) continue;
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t slot = row_of(at[t], head, heads, block);
        write(given(keys, t, head), of_keys, slot, head);
        write(given(values, t, head), of_values, slot, head);
      }
    }
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) { m.impl("write_cache", TORCH_BOX(&write_cache)); }

}  // namespace ridgeline
