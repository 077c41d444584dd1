// The kernel of linear_vectors.h for several rows, compiled once for all formats of weights.
#include "linear_panels.h"

namespace ridgeline::linear {
namespace {

template <int P, int R>
void add_rows(int64_t rows, const float* x, const float* weights, int64_t stride, int64_t n,
              Fetch fetch, float* sums) {
  if constexpr (R > 1)
    if (rows < R) return add_rows<P, R - 1>(rows, x, weights, stride, n, fetch, sums);
  add_products<R, P>(x, weights, stride, n, fetch, sums);
}

}  // namespace

void add_block(int64_t rows, int64_t panels, const float* x, const float* weights, int64_t stride,
               int64_t n, Fetch fetch, float* sums) {
  if (panels == 1)
    return add_rows<1, ROWS_OF_BLOCK>(rows, x, weights, stride, n, fetch, sums);
  add_rows<2, ROWS_OF_PAIR>(rows, x, weights, stride, n, fetch, sums);
}

}  // namespace ridgeline::linear
