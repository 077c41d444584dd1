// The operator of attention over a KV cache in blocks; see attention.h.

#include <torch/csrc/stable/library.h>

#include "attention.h"

namespace ridgeline {
namespace {

template <class Element>
void run(const Problem& p, int sequences) {
  static thread_local std::vector<float> kept;
  const Plan plan = planned(p, sequences, torch::stable::get_num_threads());
  if (kept.size() < static_cast<size_t>(plan.states)) kept.resize(plan.states);
  float* const states = kept.data();
#pragma omp parallel num_threads(plan.threads) if (plan.threads > 1)
  attend_all<Element>(p, plan, states);
}

Tensor paged_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                       const std::optional<Tensor>& key_scales,
                       const std::optional<Tensor>& value_scales, const Tensor& starts,
                       const Tensor& lengths, const Tensor& tables, double scale,
                       std::optional<int64_t> window, std::optional<double> softcap,
                       const std::optional<Tensor>& sinks) {
  STD_TORCH_CHECK(queries.dim() == 3 && queries.stride(2) == 1 &&
                      queries.size(2) == keys.size(keys.dim() - 1),
                  "paged_attention: queries [T, H, D] with dense heads of the cache's size");
  const int64_t tokens = queries.size(0), heads = queries.size(1), size = queries.size(2);
  Problem p = over_cache(queries.scalar_type(), keys, values, key_scales, value_scales, starts,
                         lengths, tables);
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
  const int sequences = static_cast<int>(lengths.numel());
  check_tables(p, sequences, tokens, keys.size(0), tables.size(1));
  [[maybe_unused]] const bool narrow = choose_packing(p);
#ifdef RIDGELINE_BF16_DOT
  if (narrow)
    run<bf16>(p, sequences);
  else
#endif
    run<float>(p, sequences);
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
