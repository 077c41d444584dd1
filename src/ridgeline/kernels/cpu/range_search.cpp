// The range of each group that leaves the least error; see ../range_search.py.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "integer_grid.h"
#include "team.h"
#include "vector.h"

namespace ridgeline {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

struct Search {
  const float* costs;  // [rows of costs, n], or null: all 1
  int64_t cost_rows;
  const float* shares;
  int64_t num_shares;
  float smallest_scale, steps;  // steps: how many fit between both ends
  Levels levels;
  bool symmetric;
};

// A scale as it is saved.
template <class T>
float stored(float scale, float smallest) {
  T kept;
  put(scale, &kept);
  const float found = to_float(kept);
  return found == 0.0f ? smallest : found;
}

// One group: its numbers and what their errors count for, with zeros up to whole vectors.
struct Group {
  std::vector<floats> numbers, costs;
  float low, high, peak_cost;

  explicit Group(int64_t n) : numbers((n + kLanes - 1) / kLanes), costs(numbers.size()) {}

  template <class T>
  void read(const T* from, const float* cost, int64_t n) {
    low = std::numeric_limits<float>::infinity(), high = -low;
    float peak = -1.0f;
    for (size_t v = 0; v < numbers.size(); ++v) {
      const auto begin = static_cast<int64_t>(v) * kLanes;
      const int count = static_cast<int>(std::min<int64_t>(kLanes, n - begin));
      numbers[v] = load(from + begin, count);
      costs[v] = cost ? load(cost + begin, count) : load_ones(count);
      for (int i = 0; i < count; ++i) {
        const float x = numbers[v][i];
        low = std::min(low, x), high = std::max(high, x);
        if (std::fabs(x) > peak) peak = std::fabs(x), peak_cost = costs[v][i];
      }
    }
  }

  float peak() const { return std::max(std::fabs(low), std::fabs(high)); }

  float error(float scale, float zero, Levels levels) const {
    floats sums{};
    for (size_t v = 0; v < numbers.size(); ++v) {
      const floats off = nearest(numbers[v], all(scale), all(zero), levels) - numbers[v];
      sums = fused(off * off, costs[v], sums);
    }
    return sum(sums);
  }

 private:
  static floats load_ones(int count) { return all(1.0f) - padding(count); }
};

template <class T>
float best_share(const Group& group, const Search& search) {
  float best = std::numeric_limits<float>::infinity(), chosen = 1.0f;
  const float reach = 1.0f + 1.0f / search.steps;  // of the end that has one level more
  for (int64_t i = 0; i < search.num_shares; ++i) {
    const float share = search.shares[i];
    const float cut = group.peak() * std::max(0.0f, 1.0f - share * reach);
    // What the largest number alone loses, and all that is narrower loses more.
    if (group.peak_cost * cut * cut > best) break;
    const float low = group.low * share, high = group.high * share;
    float scale, zero = 0.0f;
    if (search.symmetric) {
      scale = std::max(std::fabs(low), std::fabs(high)) / (search.steps / 2);
      scale = stored<T>(scale, search.smallest_scale);
    } else {
      scale = (std::max(high, 0.0f) - std::min(low, 0.0f)) / search.steps;
      scale = stored<T>(scale, search.smallest_scale);
      if (group.peak() > 0.0f) {
        const float exact = search.levels.lowest - std::min(low, 0.0f) / scale;
        zero = to_integer(all(std::clamp(exact, search.levels.lowest, search.levels.highest)))[0];
      }
    }
    const float error = group.error(scale, zero, search.levels);
    if (error < best) best = error, chosen = share;
  }
  return chosen;
}

template <class T>
void search_all(const Search& search, const T* numbers, int64_t groups, int64_t n, float* low,
                float* high) {
  constexpr int64_t TOGETHER = 64;  // groups that a member takes at a time
  Queue parts;
  in_team(torch::stable::get_num_threads(), [&](Member) {
    Group group(n);
    for (int64_t begin; (begin = TOGETHER * parts.next()) < groups;)
      for (int64_t g = begin; g < std::min(begin + TOGETHER, groups); ++g) {
        const float* costs = search.costs ? search.costs + g % search.cost_rows * n : nullptr;
        group.read(numbers + g * n, costs, n);
        const float share = best_share<T>(group, search);
        low[g] = group.low * share, high[g] = group.high * share;
      }
  });
}

bool is_vector(const Tensor& x, int64_t n) {
  return x.is_contiguous() && x.dim() == 1 && x.size(0) == n &&
         x.scalar_type() == ScalarType::Float;
}

void search_ranges(Tensor low, Tensor high, const Tensor& numbers,
                   const std::optional<Tensor>& costs, const Tensor& shares,
                   double smallest_scale, int64_t bits, bool symmetric) {
  STD_TORCH_CHECK(numbers.dim() == 2 && numbers.is_contiguous() && numbers.size(1) > 0 &&
                      is_vector(low, numbers.size(0)) && is_vector(high, numbers.size(0)) &&
                      is_vector(shares, shares.size(0)) &&
                      (!costs || (costs->dim() == 2 && costs->is_contiguous() &&
                                  costs->scalar_type() == ScalarType::Float &&
                                  costs->size(0) > 0 && costs->size(1) == numbers.size(1))),
                  "search_ranges: contiguous numbers [groups, n], costs [m, n], ends [groups]");
  const Search search{costs ? static_cast<const float*>(costs->data_ptr()) : nullptr,
                      costs ? costs->size(0) : 1,
                      static_cast<const float*>(shares.data_ptr()),
                      shares.size(0),
                      static_cast<float>(smallest_scale),
                      static_cast<float>((1 << bits) - 1),
                      levels_of(static_cast<int>(bits)),
                      symmetric};
  const int64_t groups = numbers.size(0), n = numbers.size(1);
  auto* from = static_cast<float*>(low.data_ptr());
  auto* to = static_cast<float*>(high.data_ptr());
  switch (numbers.scalar_type()) {
    case ScalarType::Float:
      return search_all(search, static_cast<const float*>(numbers.data_ptr()), groups, n, from, to);
    case ScalarType::BFloat16:
      return search_all(search, static_cast<const bf16*>(numbers.data_ptr()), groups, n, from, to);
    case ScalarType::Half:
      return search_all(search, static_cast<const half*>(numbers.data_ptr()), groups, n, from, to);
    default:
      STD_TORCH_CHECK(false, "search_ranges: numbers are float32, bfloat16 or float16");
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("search_ranges", TORCH_BOX(&search_ranges));
}

}  // namespace ridgeline
