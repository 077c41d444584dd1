// The operator of a stack of decoder layers: reads what it is given; decoder_layers.h computes.

#include "decoder_layers.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <map>
#include <utility>
#include <vector>

namespace ridgeline {
namespace {

using Tensors = std::vector<Tensor>;
using MaybeTensors = std::vector<std::optional<Tensor>>;

// The operator's arguments, as ../decoder_layers.py describes them.
struct Given {
  const Tensor &x, &cos, &sin;
  const Tensors& panels;
  const MaybeTensors &scales, &biases;
  const Tensors& norms;
  const MaybeTensors& head_norms;
  const Tensors &caches, &cache_scales;
  const Tensor &starts, &lengths, &tables, &slots;
  const std::vector<int64_t>& windows;
  const std::optional<Tensor>& seen;
  const std::vector<int64_t>& firsts;
  const MaybeTensors& offsets;  // of weights that multiply bytes
  const std::vector<double>& steps;
  float scale, softcap;

  ScalarType type() const { return x.scalar_type(); }
  size_t layers() const { return windows.size(); }
  // Of a cache that is quantised.
  std::optional<Tensor> scales_of(size_t cache) const {
    return cache_scales.empty() ? std::nullopt : std::optional<Tensor>(cache_scales[cache]);
  }
};

void check(const Given& g) {
  STD_TORCH_CHECK(g.type() == ScalarType::Float || g.type() == ScalarType::BFloat16,
                  "decoder_layers: float32 or bfloat16");
  const size_t count = g.layers();
  STD_TORCH_CHECK(count > 0 && g.panels.size() == kLinears * count &&
                      g.scales.size() == g.panels.size() && g.biases.size() == g.panels.size() &&
                      g.norms.size() == 2 * count && g.head_norms.size() == 2 * count &&
                      g.caches.size() == 2 * count && g.firsts.size() == count &&
                      g.offsets.size() == g.panels.size() && g.steps.size() == kReaders * count &&
                      (g.cache_scales.empty() || g.cache_scales.size() == 2 * count),
                  "decoder_layers: lists of one length per layer");
  STD_TORCH_CHECK(!g.seen || g.seen->numel() >= g.x.size(0),
                  "decoder_layers: seen for every token");
  for (const Tensor& cache : g.caches)
    STD_TORCH_CHECK(cache.dim() == 4 && cache.scalar_type() == g.caches[0].scalar_type() &&
                        cache.size(1) == g.caches[0].size(1) &&
                        cache.size(2) == g.caches[0].size(2) &&
                        cache.size(3) == g.caches[0].size(3),
                    "decoder_layers: caches [N, KV, B, D] of one shape and type");
}

Stack stack_of(const Given& g, int64_t heads, int64_t inner) {
  Stack s{};
  s.tokens = g.x.size(0);
  s.hidden = g.x.size(1);
  s.inner = inner;
  s.heads = heads;
  s.kv_heads = g.caches[0].size(1);
  s.block = g.caches[0].size(2);
  s.size = g.caches[0].size(3);
  STD_TORCH_CHECK(g.x.is_contiguous() && g.cos.is_contiguous() && g.sin.is_contiguous() &&
                      g.cos.numel() == s.tokens * s.size && g.sin.numel() == g.cos.numel() &&
                      g.cos.scalar_type() == g.type() && g.sin.scalar_type() == g.type(),
                  "decoder_layers: x [T, hidden], cos and sin [T, D], all of one type");
  STD_TORCH_CHECK(g.slots.numel() == s.tokens && s.size % 2 == 0 && heads % s.kv_heads == 0,
                  "decoder_layers: T slots, heads of an even size, and a key head for each group");
  s.cos = g.cos.data_ptr();
  s.sin = g.sin.data_ptr();
  s.slots = g.slots.const_data_ptr<int64_t>();
  s.write = writer_of(g.type(), g.caches[0].scalar_type());
  STD_TORCH_CHECK(s.write, "decoder_layers: a cache of an unknown type");
  const int64_t most = g.caches[0].size(0) * s.block;
  for (int64_t t = 0; t < s.tokens; ++t)
    STD_TORCH_CHECK(s.slots[t] < most, "decoder_layers: slot ", s.slots[t], " of ", most);
  return s;
}

// Bytes from row to row of rounded activations: widest row, and 64 that keep rows out of one
// another's cache sets.
int64_t stride_of_levels(const Stack& s) {
  const int64_t widest = std::max({s.hidden, s.heads * s.size, s.inner});
  return (widest + 63) / 64 * 64 + 64;
}

// Gives every buffer of the stack its place.
void share_out(const Tensor& workspace, ScalarType type, bool rounds, Stack& s) {
  const int64_t of_queries = s.heads * s.size, of_keys = s.kv_heads * s.size;
  const int64_t width = static_cast<int64_t>(workspace.element_size());
  const int64_t of_levels = stride_of_levels(s) / width, of_step = sizeof(float) / width;
  const int64_t row = 2 * (s.hidden + of_queries + of_keys + s.inner) +
                      (rounds ? of_levels + of_step : 0);
  STD_TORCH_CHECK(workspace.is_contiguous() && workspace.scalar_type() == type &&
                      workspace.numel() >= s.tokens * row,
                  "decoder_layers: a workspace of ", row, " numbers a token");
  char* next = static_cast<char*>(workspace.mutable_data_ptr());
  const auto take = [&](int64_t count) {
    char* taken = next;
    next += s.tokens * count * width;
    return static_cast<void*>(taken);
  };
  if (rounds) {  // first, where it is aligned
    s.levels.stride = stride_of_levels(s);
    s.levels.bytes = static_cast<uint8_t*>(take(of_levels));
    s.levels.steps = static_cast<float*>(take(of_step));
  }
  s.normed = take(s.hidden);
  s.product = take(s.hidden);
  s.queries = take(of_queries);
  s.attended = take(of_queries);
  s.keys = take(of_keys);
  s.values = take(of_keys);
  s.gates = take(s.inner);
  s.ups = take(s.inner);
}

Problem problem_of(const Given& g, const Stack& s, size_t layer) {
  Problem p = over_cache(g.type(), g.caches[2 * layer], g.caches[2 * layer + 1],
                         g.scales_of(2 * layer), g.scales_of(2 * layer + 1), g.starts, g.lengths,
                         g.tables, g.seen);
  p.heads = static_cast<int>(s.heads);
  p.group = p.heads / p.kv_heads;
  p.token_stride = s.heads * s.size;
  p.head_stride = s.size;
  p.scale = g.scale;
  p.softcap = g.softcap;
  p.window = static_cast<int>(g.windows[layer]);
  p.first = static_cast<int>(g.firsts[layer]);
  p.queries = static_cast<const char*>(s.queries);
  p.out = static_cast<char*>(s.attended);
  return p;
}

// Who computes what of attention depends on what a layer sees only: its window, and `first`.
using Sees = std::pair<int64_t, int64_t>;
std::map<Sees, Plan> plans_of(const Given& g, const Stack& s, int threads) {
  std::map<Sees, Plan> plans;
  const int sequences = static_cast<int>(g.lengths.numel());
  for (size_t layer = 0; layer < g.layers(); ++layer) {
    const Sees sees{g.windows[layer], g.firsts[layer]};
    if (plans.contains(sees)) continue;
    const Problem p = problem_of(g, s, layer);
    check_tables(p, sequences, s.tokens, g.caches[0].size(0), g.tables.size(1));
    plans[sees] = planned(p, sequences, threads);
  }
  return plans;
}

// A product of bytes, by what is rounded before it.
Product rounded_product_of(const Given& g, const Stack& s, size_t at, void* to, int64_t depth,
                           int64_t outputs) {
  const Tensor &panels = g.panels[at], &offsets = *g.offsets[at];
  const Share share = linear::rounded_format_of_loaded(g.type()).share;
  STD_TORCH_CHECK(share, "decoder_layers: this build multiplies no bytes");
  const int64_t lanes = panels.size(0) * PANEL;
  STD_TORCH_CHECK(panels.scalar_type() == ScalarType::Char && panels.size(1) * 4 == depth &&
                      g.scales[at] && g.scales[at]->numel() == lanes &&
                      g.scales[at]->scalar_type() == ScalarType::Float &&
                      g.scales[at]->is_contiguous() && offsets.numel() == lanes &&
                      offsets.scalar_type() == ScalarType::Int && offsets.is_contiguous(),
                  "decoder_layers: a weight of bytes for ", panels.size(1) * 4, " inputs, not ",
                  depth);
  Job job = linear::job_of(panels, std::nullopt, std::nullopt, g.biases[at], outputs, depth);
  job.scales = g.scales[at]->data_ptr();
  job.offsets = offsets.const_data_ptr<int32_t>();
  job.levels = s.levels;
  job.out = to;
  job.rows = s.tokens;
  return {job, share};
}

Product product_of(const Given& g, const Stack& s, size_t at, const void* from, void* to,
                   int64_t depth, int64_t outputs) {
  if (g.offsets[at]) return rounded_product_of(g, s, at, to, depth, outputs);
  const Tensor& panels = g.panels[at];
  const ScalarType stored = panels.scalar_type();
  const Share share = linear::share_of_loaded(stored, g.type());
  STD_TORCH_CHECK(share, "decoder_layers: weights that do not take such activations");
  const int64_t in_line = stored == ScalarType::Byte ? 4 : stored == ScalarType::Float ? 1 : 2;
  STD_TORCH_CHECK(panels.size(1) * in_line == depth, "decoder_layers: a weight for ",
                  panels.size(1) * in_line, " inputs, not ", depth);
  Job job = linear::job_of(panels, g.scales[at], std::nullopt, g.biases[at], outputs, depth);
  job.x = from;
  job.out = to;
  job.rows = s.tokens;
  return {job, share};
}

const void* weight_of(const Tensor& norm, int64_t size, ScalarType type) {
  STD_TORCH_CHECK(norm.is_contiguous() && norm.numel() == size && norm.scalar_type() == type,
                  "decoder_layers: a norm of another size or type");
  return norm.data_ptr();
}

Layer layer_of(const Given& g, const Stack& s, size_t i, const Plan& plan, Turns& turns) {
  Layer layer{};
  layer.norm = weight_of(g.norms[2 * i], s.hidden, g.type());
  layer.norm_of_mlp = weight_of(g.norms[2 * i + 1], s.hidden, g.type());
  const auto &of_queries = g.head_norms[2 * i], &of_keys = g.head_norms[2 * i + 1];
  if (of_queries) layer.norm_of_queries = weight_of(*of_queries, s.size, g.type());
  if (of_keys) layer.norm_of_keys = weight_of(*of_keys, s.size, g.type());
  const int64_t query_width = s.heads * s.size, key_width = s.kv_heads * s.size;
  const struct {
    const void* from;
    void* to;
    int64_t depth, outputs;
  } places[kLinears] = {
      {s.normed, s.queries, s.hidden, query_width}, {s.normed, s.keys, s.hidden, key_width},
      {s.normed, s.values, s.hidden, key_width},    {s.attended, s.product, query_width, s.hidden},
      {s.normed, s.gates, s.hidden, s.inner},       {s.normed, s.ups, s.hidden, s.inner},
      {s.gates, s.product, s.inner, s.hidden},
  };
  for (int j = 0; j < kLinears; ++j)
    layer.products[j] = product_of(g, s, kLinears * i + j, places[j].from, places[j].to,
                                   places[j].depth, places[j].outputs);
  constexpr Reader READERS[kLinears] = {kOfAttention, kOfAttention, kOfAttention, kOfOut,
                                        kOfMlp,       kOfMlp,       kOfDown};
  for (int j = 0; j < kLinears; ++j)
    if (g.offsets[kLinears * i + j])
      layer.roundings[READERS[j]] = {linear::rounded_format_of_loaded(g.type()).round,
                                     static_cast<float>(g.steps[kReaders * i + READERS[j]])};
  layer.attention = problem_of(g, s, i);
  layer.plan = &plan;
  layer.turns = &turns;
  layer.keys = shelf_of(g.caches[2 * i], g.scales_of(2 * i));
  layer.values = shelf_of(g.caches[2 * i + 1], g.scales_of(2 * i + 1));
  return layer;
}

// Below so many multiplications a layer a team of threads would mostly wait for itself.
constexpr int64_t kWorthATeam = 1 << 18;

Tensor decoder_layers(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensors& panels,
                      const MaybeTensors& scales, const MaybeTensors& biases, const Tensors& norms,
                      const MaybeTensors& head_norms, int64_t heads, int64_t inner, double eps,
                      double offset, bool round_first, bool gelu, const Tensors& caches,
                      const Tensors& cache_scales, const Tensor& starts, const Tensor& lengths,
                      const Tensor& tables, const Tensor& slots, double scale,
                      const std::vector<int64_t>& windows, double softcap,
                      const std::optional<Tensor>& seen, const std::vector<int64_t>& firsts,
                      const MaybeTensors& offsets, const std::vector<double>& steps,
                      const Tensor& workspace) {
  const Given given{x, cos, sin, panels, scales, biases, norms, head_norms, caches, cache_scales,
                    starts, lengths, tables, slots, windows, seen, firsts, offsets, steps,
                    static_cast<float>(scale), static_cast<float>(softcap)};
  check(given);
  Stack s = stack_of(given, heads, inner);
  s.eps = static_cast<float>(eps);
  s.offset = static_cast<float>(offset);
  s.round_first = round_first;
  s.gelu = gelu;
  const bool rounds = std::any_of(offsets.begin(), offsets.end(),
                                  [](const auto& one) { return one.has_value(); });
  share_out(workspace, given.type(), rounds, s);
  Tensor out = torch::stable::new_empty(x, {s.tokens, s.hidden});
  if (s.tokens == 0) return out;
  s.x = out.data_ptr();
  const size_t bytes = x.element_size();
  std::memcpy(s.x, x.data_ptr(), s.tokens * s.hidden * bytes);

  const int64_t work = s.tokens * s.hidden * (2 * (heads + s.kv_heads) * s.size + 3 * inner);
  const int threads = work < kWorthATeam ? 1 : torch::stable::get_num_threads();
  const std::map<Sees, Plan> plans = plans_of(given, s, threads);
  static thread_local std::vector<float> kept;
  for (const auto& [sees, plan] : plans)
    kept.resize(std::max(kept.size(), static_cast<size_t>(plan.states)));
  s.states = kept.data();
  // Rows of padding belong to nobody: zeros, so that nothing odd spreads from them.
  const int64_t packed = starts.const_data_ptr<int32_t>()[lengths.numel()];
  const size_t row = heads * s.size * bytes;
  std::memset(static_cast<char*>(s.attended) + packed * row, 0, (s.tokens - packed) * row);

  std::vector<Layer> layers;
  std::vector<Turns> turns(given.layers());
  for (size_t i = 0; i < given.layers(); ++i)
    layers.push_back(layer_of(given, s, i, plans.at({windows[i], firsts[i]}), turns[i]));
  in_team(threads, [&](Member member) {
    for (const Layer& layer : layers) {
      if (given.type() == ScalarType::Float)
        pass<float>(layer, s, member);
      else
        pass<bf16>(layer, s, member);
    }
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("decoder_layers", TORCH_BOX(&decoder_layers));
}

}  // namespace ridgeline
