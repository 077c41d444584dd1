// Small matrix products in registers: C [rows, columns] from A [rows, k] and B [k, columns].
//
// A word is 32 bits: one float, or two neighbouring bf16 of the summed dimension, which AVX512-BF16
// multiplies and adds in one instruction. A is row-major in elements; B has the words of 16 columns
// side by side. Each element is summed in the order of k whatever the shape of the call, so a row
// of a product does not depend on the rows beside it.

#pragma once

#include "vector.h"

namespace ridgeline {

using word = uint32_t;

// Elements in a word.
template <class Element>
constexpr int kWide = sizeof(word) / sizeof(Element);

// Words that `size` elements take.
template <class Element>
constexpr int words_of(int size) {
  return (size + kWide<Element> - 1) / kWide<Element>;
}

struct Columns {          // where B keeps the words of step k and columns 16c .. 16c+15
  const word* at;
  int64_t k_stride;
  int64_t c_stride;
};

template <class Element>
inline floats multiply_add(word a, floats b, floats sum);

template <>
inline floats multiply_add<float>(word a, floats b, floats sum) {
  float x;
  std::memcpy(&x, &a, sizeof x);
  return fused(all(x), b, sum);
}
#ifdef RIDGELINE_BF16_DOT
template <>
inline floats multiply_add<bf16>(word a, floats b, floats sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
}
#endif

// R rows times C vectors of columns; `take(row, column, sum)` gets each vector of the result.
// `a_stride` counts elements, `k` words.
template <class Element, int R, int C, class Take>
inline void multiply(const Element* a, int64_t a_stride, Columns b, int k, Take take) {
  floats sums[R][C] = {};
  for (int i = 0; i < k; ++i) {
    floats row[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
      std::memcpy(&row[c], b.at + i * b.k_stride + c * b.c_stride, sizeof(floats));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      word factor;
      std::memcpy(&factor, a + r * a_stride + i * kWide<Element>, sizeof factor);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        sums[r][c] = multiply_add<Element>(factor, row[c], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) take(r, c, sums[r][c]);
}

// All `columns` vectors of R rows.
template <class Element, int R, class Take>
inline void multiply_rows(const Element* a, int64_t a_stride, Columns b, int k, int columns,
                          Take take) {
  int c = 0;
  const auto shifted = [&](int r, int column, floats sum) { take(r, c + column, sum); };
  const auto from = [&] { return Columns{b.at + c * b.c_stride, b.k_stride, b.c_stride}; };
#ifdef RIDGELINE_AVX512
  if constexpr (R == 1)
    for (; c + 8 <= columns; c += 8) multiply<Element, R, 8>(a, a_stride, from(), k, shifted);
  for (; c + 4 <= columns; c += 4) multiply<Element, R, 4>(a, a_stride, from(), k, shifted);
#endif
  for (; c + 2 <= columns; c += 2) multiply<Element, R, 2>(a, a_stride, from(), k, shifted);
  for (; c < columns; ++c) multiply<Element, R, 1>(a, a_stride, from(), k, shifted);
}

// The whole product; `columns` counts vectors of 16.
template <class Element, class Take>
inline void product(const Element* a, int64_t a_stride, int rows, Columns b, int k, int columns,
                    Take take) {
  int r = 0;
  const auto shifted = [&](int row, int c, floats sum) { take(r + row, c, sum); };
#ifdef RIDGELINE_AVX512
  for (; r + 6 <= rows; r += 6)
    multiply_rows<Element, 6>(a + r * a_stride, a_stride, b, k, columns, shifted);
  for (; r + 4 <= rows; r += 4)
    multiply_rows<Element, 4>(a + r * a_stride, a_stride, b, k, columns, shifted);
#endif
  for (; r + 2 <= rows; r += 2)
    multiply_rows<Element, 2>(a + r * a_stride, a_stride, b, k, columns, shifted);
  for (; r < rows; ++r)
    multiply_rows<Element, 1>(a + r * a_stride, a_stride, b, k, columns, shifted);
}

}  // namespace ridgeline
