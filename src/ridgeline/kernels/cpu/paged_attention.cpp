// The operator of attention over a KV cache in blocks, and what attention_problem.h declares; see
// attention.h.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "attention.h"

namespace ridgeline {
namespace {

// The functions that pack what is stored into what is multiplied: bf16 for queries in bf16 where
// the CPU multiplies them and they hold what is stored exactly, else floats.
template <class Element, class Stored>
void pack_from(Problem& p) {
  p.pack_keys = pack_keys<Element, Stored>;
  p.pack_values = pack_values<Element, Stored>;
  p.narrow = kWide<Element> > 1;
}

template <class Stored>
void pack_from_small(Problem& p) {
#ifdef RIDGELINE_BF16_DOT
  if (p.query_type == ScalarType::BFloat16) return pack_from<bf16, Stored>(p);
#endif
  return pack_from<float, Stored>(p);
}

void choose_packing(Problem& p) {
  switch (p.stored_type) {
    case ScalarType::Float: return pack_from<float, float>(p);
    case ScalarType::Half: return pack_from<float, half>(p);
    case ScalarType::BFloat16: return pack_from_small<bf16>(p);
    case ScalarType::Char: return pack_from_small<int8_t>(p);
    case ScalarType::Float8_e4m3fn: return pack_from_small<fp8>(p);
    default: STD_TORCH_CHECK(false, "paged_attention: a cache of an unknown type");
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

}  // namespace

Problem over_cache(ScalarType type, const Tensor& keys, const Tensor& values,
                   const std::optional<Tensor>& key_scales,
                   const std::optional<Tensor>& value_scales, const Tensor& starts,
                   const Tensor& lengths, const Tensor& tables,
                   const std::optional<Tensor>& seen) {
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
  p.seen = seen ? seen->const_data_ptr<int64_t>() : nullptr;
  p.kv_heads = static_cast<int>(keys.size(1));
  p.block = static_cast<int>(keys.size(2));
  p.size = static_cast<int>(keys.size(3));
  p.row_bytes = static_cast<int64_t>(keys.element_size()) * p.size;
  choose_packing(p);
  return p;
}

void check_tables(const Problem& p, int sequences, int64_t tokens, int64_t blocks, int64_t most) {
  STD_TORCH_CHECK(p.starts[0] == 0 && p.starts[sequences] <= tokens,
                  "paged_attention: query_starts do not fit the queries");
  for (int s = 0; s < sequences; ++s) {
    const int queries = p.starts[s + 1] - p.starts[s];
    STD_TORCH_CHECK(queries >= 0 && (queries == 0 || p.lengths[s] >= queries),
                    "paged_attention: a sequence with more queries than context");
    if (queries == 0) continue;
    const int first = lowest_seen(p, p.lengths[s] - queries, 0);
    STD_TORCH_CHECK((p.lengths[s] + p.block - 1) / p.block <= most,
                    "paged_attention: a context longer than its block table");
    for (int i = first / p.block; i < (p.lengths[s] + p.block - 1) / p.block; ++i) {
      const int32_t block = p.tables[s * p.table_stride + i];
      STD_TORCH_CHECK(block >= 0 && block < blocks, "paged_attention: block ", block, " of ",
                      blocks);
    }
  }
}

Plan planned(const Problem& p, int sequences, int threads) {
  Plan plan{tiles_of(p, sequences), {}, 0, threads};
  int64_t work = 0, rows = 0;
  for (const Item& tile : plan.tiles) work += tile.rows * (tile.last_block - tile.first_block);
  // A team of threads takes some microseconds to start: as long as 32 rows times a block.
  if (work * p.size < 32 * 64) plan.threads = 1;
  const bool parts = plan.threads > 1 && plan.tiles.size() < 4u * plan.threads;
  plan.items = parts ? split(plan.tiles, rows) : plan.tiles;
  plan.states = rows * (width_of(p) + 2);
  return plan;
}

void attend_all(const Problem& p, const Plan& plan, Turns& turns, Member member, float* states) {
#ifdef RIDGELINE_BF16_DOT
  if (p.narrow) return attend_items<bf16>(p, plan, turns, member, states);
#endif
  attend_items<float>(p, plan, turns, member, states);
}

namespace {

Tensor paged_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                       const std::optional<Tensor>& key_scales,
                       const std::optional<Tensor>& value_scales, const Tensor& starts,
                       const Tensor& lengths, const Tensor& tables, double scale,
                       std::optional<int64_t> window, std::optional<double> softcap,
                       const std::optional<Tensor>& sinks, const std::optional<Tensor>& seen,
                       int64_t first) {
  STD_TORCH_CHECK(queries.dim() == 3 && queries.stride(2) == 1 &&
                      queries.size(2) == keys.size(keys.dim() - 1),
                  "paged_attention: queries [T, H, D] with dense heads of the cache's size");
  const int64_t tokens = queries.size(0), heads = queries.size(1), size = queries.size(2);
  Problem p = over_cache(queries.scalar_type(), keys, values, key_scales, value_scales, starts,
                         lengths, tables, seen);
  STD_TORCH_CHECK(!seen || seen->numel() >= tokens, "paged_attention: seen for every query");
  Tensor out = torch::stable::new_empty(queries, {tokens, heads, size});
  p.queries = static_cast<const char*>(queries.data_ptr());
  p.out = static_cast<char*>(out.data_ptr());
  p.token_stride = queries.stride(0);
  p.head_stride = queries.stride(1);
  p.sinks = sinks ? sinks->const_data_ptr<float>() : nullptr;
  p.heads = static_cast<int>(heads);
  p.group = p.heads / p.kv_heads;
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap.value_or(0.0));
  p.window = static_cast<int>(window.value_or(0));
  p.first = static_cast<int>(first);
  const int sequences = static_cast<int>(lengths.numel());
  check_tables(p, sequences, tokens, keys.size(0), tables.size(1));
  static thread_local std::vector<float> kept;
  const Plan plan = planned(p, sequences, torch::stable::get_num_threads());
  if (kept.size() < static_cast<size_t>(plan.states)) kept.resize(plan.states);
  float* const states = kept.data();
  Turns turns;
  in_team(plan.threads, [&](Member member) { attend_all(p, plan, turns, member, states); });
  // Rows of padding belong to nobody: zeros, so that nothing odd spreads from them.
  const size_t row = queries.element_size() * heads * size;
  std::memset(p.out + p.starts[sequences] * row, 0, (tokens - p.starts[sequences]) * row);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("paged_attention", TORCH_BOX(&paged_attention));
}

}  // namespace ridgeline
