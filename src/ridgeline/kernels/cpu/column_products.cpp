// Sums of the products of all pairs of columns; see ../column_products.py.
//
//   sums[i, j] += Σ_t x[t, i] x[t, j]        j ≥ i
//
// A panel has 48 columns, of which two rows after one another stand side by side as a word: what is
// multiplied from the left and from the right are panels alike. Where AVX512-BF16 is, a word of one
// column is multiplied by those of 16 others at once, and 8 columns by 48 are summed in registers.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <vector>

#include "team.h"
#include "vector.h"

namespace ridgeline {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int VECTORS = 3, PANEL = VECTORS * kLanes, GROUP = 8;
constexpr int64_t SLAB = 256;  // words of a column that are summed at once: panels stay in a cache

inline floats add_pairs(uint32_t word, ints words, floats sum) {
#ifdef RIDGELINE_BF16_DOT
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(word)),
                          (__m512bh)words);
#else
  const ints factor = static_cast<int32_t>(word) - ints{}, high = ints{} + ~0xffff;
  const auto number = [](ints bits) {
    floats y;
    std::memcpy(&y, &bits, sizeof y);
    return y;
  };
  sum = fused(number(factor << 16), number(words << 16), sum);
  return fused(number(factor & high), number(words & high), sum);
#endif
}

struct Panels {
  const uint32_t* words;  // [panels, pairs, PANEL]
  int64_t pairs, columns;

  const uint32_t* at(int64_t panel, int64_t pair) const {
    return words + (panel * pairs + pair) * PANEL;
  }
  int64_t count() const { return (columns + PANEL - 1) / PANEL; }
};

// Adds what GROUP columns from `left` on and the panel at `right` come to.
void add_group(const uint32_t* left, const uint32_t* right, int64_t pairs, float* to,
               int64_t stride, int64_t rows, int64_t columns) {
  floats sums[GROUP][VECTORS] = {};
  for (int64_t pair = 0; pair < pairs; ++pair, left += PANEL, right += PANEL) {
    ints words[VECTORS];
#pragma GCC unroll 3
    for (int c = 0; c < VECTORS; ++c)
      std::memcpy(&words[c], right + c * kLanes, sizeof(ints));
#pragma GCC unroll 8
    for (int r = 0; r < GROUP; ++r)
#pragma GCC unroll 3
      for (int c = 0; c < VECTORS; ++c) sums[r][c] = add_pairs(left[r], words[c], sums[r][c]);
  }
  for (int64_t r = 0; r < std::min<int64_t>(GROUP, rows); ++r)
    for (int c = 0; c < VECTORS; ++c) {
      const int n = static_cast<int>(std::clamp<int64_t>(columns - c * kLanes, 0, kLanes));
      float* place = to + r * stride + c * kLanes;
      if (n > 0) store(load(place, n) + sums[r][c], place, n);
    }
}

// All columns of one panel by those of the panels from it on.
void add_panel(const Panels& x, int64_t row, int64_t slab, int64_t pairs, float* sums) {
  for (int64_t column = row; column < x.count(); ++column)
    for (int64_t first = 0; first < PANEL && row * PANEL + first < x.columns; first += GROUP) {
      const int64_t top = row * PANEL + first, left = column * PANEL;
      add_group(x.at(row, slab) + first, x.at(column, slab), pairs, sums + top * x.columns + left,
                x.columns, x.columns - top, x.columns - left);
    }
}

void pack(const uint16_t* x, int64_t tokens, int64_t columns, int64_t pair, int64_t pairs,
          std::vector<uint32_t>& words) {
  const uint16_t* even = x + 2 * pair * columns;
  const uint16_t* odd = 2 * pair + 1 < tokens ? even + columns : nullptr;
  for (int64_t panel = 0; panel * PANEL < columns; ++panel) {
    uint32_t* to = words.data() + (panel * pairs + pair) * PANEL;
    const int64_t begin = panel * PANEL, count = std::min<int64_t>(PANEL, columns - begin);
    for (int64_t i = 0; i < count; ++i)
      to[i] = even[begin + i] | (odd ? static_cast<uint32_t>(odd[begin + i]) << 16 : 0u);
  }
}

void add_column_products(Tensor sums, const Tensor& x) {
  STD_TORCH_CHECK(x.is_contiguous() && sums.is_contiguous() && x.dim() == 2 && sums.dim() == 2 &&
                      sums.size(0) == x.size(1) && sums.size(1) == x.size(1) &&
                      x.scalar_type() == ScalarType::BFloat16 &&
                      sums.scalar_type() == ScalarType::Float,
                  "add_column_products: contiguous x [tokens, n] bfloat16, sums [n, n] float32");
  const int64_t tokens = x.size(0), columns = x.size(1), pairs = (tokens + 1) / 2;
  if (tokens == 0 || columns == 0) return;
  const auto* from = static_cast<const uint16_t*>(x.data_ptr());
  auto* to = static_cast<float*>(sums.data_ptr());
  std::vector<uint32_t> words((columns + PANEL - 1) / PANEL * pairs * PANEL);
  const Panels panels{words.data(), pairs, columns};
  Queue rows;
  in_team(torch::stable::get_num_threads(), [&](Member member) {
    const Range own = member.own(pairs);
    for (int64_t pair = own.begin; pair < own.end; ++pair)
      pack(from, tokens, columns, pair, pairs, words);
    member.wait();
    for (int64_t row; (row = rows.next()) < panels.count();)
      for (int64_t slab = 0; slab < pairs; slab += SLAB)
        add_panel(panels, row, slab, std::min(SLAB, pairs - slab), to);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("add_column_products", TORCH_BOX(&add_column_products));
}

}  // namespace ridgeline
