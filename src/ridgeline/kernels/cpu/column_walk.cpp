// Columns of a matrix rounded one by one, the rest making up for each; see ../column_walk.py.
//
// Rows do not meet: 16 of them lie side by side in a panel that stays in a cache, [columns, 16]. What
// 16 columns leave is taken over by all columns after them at once.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "integer_grid.h"
#include "team.h"
#include "vector.h"

namespace ridgeline {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t STEP = 16;  // columns whose errors are in registers together
constexpr int AT_ONCE = 4;    // columns after them that are corrected together

struct Walk {
  float* rest;          // [columns, rows]
  const float* factor;  // [columns, columns], its upper triangle
  const float* scales;  // [groups, rows]
  const float* zeros;   // [groups, rows], or null
  const int64_t* groups;
  const bool* stays;  // [columns, rows], or null
  int64_t columns, rows;
  Levels levels;
};

// AT_ONCE columns from `column` on take over what `count` columns from `first` on left.
void correct(const Walk& walk, const floats* errors, int64_t first, int64_t count, int64_t column,
             floats* panel) {
  floats sums[AT_ONCE];
  for (int c = 0; c < AT_ONCE; ++c) sums[c] = panel[column + c];
  const float* row = walk.factor + first * walk.columns + column;
  for (int64_t j = 0; j < count; ++j, row += walk.columns)
    for (int c = 0; c < AT_ONCE; ++c) sums[c] = fused(all(-row[c]), errors[j], sums[c]);
  for (int c = 0; c < AT_ONCE; ++c) panel[column + c] = sums[c];
}

// What is chosen for one column of 16 rows.
floats rounded(const Walk& walk, int64_t column, int64_t row, int n, floats now) {
  const int64_t place = walk.groups[column] * walk.rows + row;
  const floats scale = n < kLanes ? load(walk.scales + place, n) + padding(n)
                                  : load(walk.scales + place, n);
  const floats zero = walk.zeros ? load(walk.zeros + place, n) : floats{};
  floats value = nearest(now, scale, zero, walk.levels);
  if (walk.stays)
    for (int i = 0; i < n; ++i)
      if (!walk.stays[column * walk.rows + row + i]) value[i] = 0.0f;
  return value;
}

void walk_panel(const Walk& walk, int64_t row, floats* panel) {
  const int n = static_cast<int>(std::min<int64_t>(kLanes, walk.rows - row));
  for (int64_t c = 0; c < walk.columns; ++c) panel[c] = load(walk.rest + c * walk.rows + row, n);
  for (int64_t first = 0; first < walk.columns; first += STEP) {
    const int64_t count = std::min(STEP, walk.columns - first), stop = first + count;
    floats errors[STEP];
    for (int64_t j = first; j < stop; ++j) {
      const float* factor = walk.factor + j * walk.columns;
      const floats now = panel[j], value = rounded(walk, j, row, n, now);
      const floats error = (now - value) / all(factor[j]);
      store(value, walk.rest + j * walk.rows + row, n);
      errors[j - first] = error;
      for (int64_t c = j + 1; c < stop; ++c) panel[c] = fused(all(-factor[c]), error, panel[c]);
    }
    int64_t column = stop;
    for (; column + AT_ONCE <= walk.columns; column += AT_ONCE)
      correct(walk, errors, first, count, column, panel);
    for (; column < walk.columns; ++column)
      for (int64_t j = 0; j < count; ++j)
        panel[column] =
            fused(all(-walk.factor[(first + j) * walk.columns + column]), errors[j], panel[column]);
  }
}

bool is_matrix(const Tensor& x, ScalarType type, int64_t rows, int64_t columns) {
  return x.is_contiguous() && x.dim() == 2 && x.scalar_type() == type && x.size(0) == rows &&
         x.size(1) == columns;
}

void walk_columns(Tensor rest, const Tensor& factor, const Tensor& scales,
                  const std::optional<Tensor>& zeros, const Tensor& groups,
                  const std::optional<Tensor>& stays, int64_t bits) {
  STD_TORCH_CHECK(rest.dim() == 2, "walk_columns: rest is [columns, rows]");
  const int64_t columns = rest.size(0), rows = rest.size(1), parts = scales.size(0);
  STD_TORCH_CHECK(
      is_matrix(rest, ScalarType::Float, columns, rows) &&
          is_matrix(factor, ScalarType::Float, columns, columns) &&
          is_matrix(scales, ScalarType::Float, parts, rows) &&
          (!zeros || is_matrix(*zeros, ScalarType::Float, parts, rows)) &&
          (!stays || is_matrix(*stays, ScalarType::Bool, columns, rows)) && groups.dim() == 1 &&
          groups.is_contiguous() && groups.size(0) == columns &&
          groups.scalar_type() == ScalarType::Long,
      "walk_columns: contiguous rest [n, rows], factor [n, n], scales and zeros [groups, rows] "
      "float32, groups [n] int64, stays [n, rows] bool");
  const auto* group_of = static_cast<const int64_t*>(groups.data_ptr());
  STD_TORCH_CHECK(std::all_of(group_of, group_of + columns,
                              [&](int64_t group) { return group >= 0 && group < parts; }),
                  "walk_columns: a group that has no scale");
  const Walk walk{static_cast<float*>(rest.data_ptr()),
                  static_cast<const float*>(factor.data_ptr()),
                  static_cast<const float*>(scales.data_ptr()),
                  zeros ? static_cast<const float*>(zeros->data_ptr()) : nullptr,
                  group_of,
                  stays ? static_cast<const bool*>(stays->data_ptr()) : nullptr,
                  columns,
                  rows,
                  levels_of(static_cast<int>(bits))};
  Queue panels;
  in_team(torch::stable::get_num_threads(), [&](Member) {
    std::vector<floats> panel(columns);
    for (int64_t row; (row = kLanes * panels.next()) < rows;) walk_panel(walk, row, panel.data());
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("walk_columns", TORCH_BOX(&walk_columns));
}

}  // namespace ridgeline
