// Sums of the products of all pairs of columns that are rounded to bytes; see ../column_products.py.
//
//   sums[i, j] += a[i] a[j] Σ_t q[t, i] q[t, j]        a[i] = max_t |x[t, i]| / 127, q = round(x / a)
//
// Each slab of tokens has steps a of its own. A word of a panel has four tokens of one column; x86
// multiplies unsigned by signed bytes, so panels are kept as q and as q + 128, and 128 Σ q is taken
// off. Where the CPU multiplies four bytes at once, 8 columns by 48 are summed in registers, in half
// the time of bfloat16.

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

constexpr int BYTE_VECTORS = 3, BYTE_PANEL = BYTE_VECTORS * kLanes, BYTE_GROUP = 8;
constexpr int64_t BYTE_SLAB = 1024;  // tokens with the same steps

inline ints add_bytes(ints sums, ints unsigned_bytes, int32_t signed_bytes) {
#ifdef __AVX512VNNI__
  return (ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)unsigned_bytes,
                                   _mm512_set1_epi32(signed_bytes));
#else
  for (int shift = 0; shift < 32; shift += 8)
    sums += (unsigned_bytes >> shift & 0xff) *
            static_cast<int32_t>(static_cast<int8_t>(signed_bytes >> shift));
  return sums;
#endif
}

// Integers that wrap around: of what is not finite they are rubbish, and the step that they are
// multiplied by is NaN.
using wrapping = uint32_t __attribute__((vector_size(64)));

inline ints bits_of(floats x) {
  ints bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline floats numbers_of(ints bits) {
  floats x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The bytes of a slab: [panels, words, BYTE_PANEL].
struct Bytes {
  int64_t columns, words;
  std::vector<int32_t> as_signed, as_unsigned;
  std::vector<float> steps;     // [panels · BYTE_PANEL]
  std::vector<int32_t> excess;  // [panels · BYTE_PANEL]: 128 Σ q

  Bytes(int64_t columns, int64_t tokens) : columns(columns), words((tokens + 3) / 4) {
    const int64_t padded = panels() * BYTE_PANEL;
    as_signed.resize(padded * words);
    as_unsigned.resize(padded * words);
    steps.resize(padded);
    excess.resize(padded);
  }
  int64_t panels() const { return (columns + BYTE_PANEL - 1) / BYTE_PANEL; }

  // Rounds kLanes columns of x [tokens, columns], those from `column` on.
  void pack(const bf16* x, int64_t tokens, int64_t column) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, columns - column));
    ints most{};  // of integers NaN is the largest
    for (int64_t t = 0; t < tokens; ++t) {
      const ints magnitude = bits_of(load(x + t * columns + column, n)) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
    const floats largest = numbers_of(most);
    store(largest / 127.0f, steps.data() + column);
    const floats inverse = largest > 1e-30f ? 127.0f / largest : floats{};  // of NaN 0, too
    const floats magic = all(12582912.0f);  // behind it a float has no places for fractions
    wrapping total{};
    int64_t place = column / BYTE_PANEL * words * BYTE_PANEL + column % BYTE_PANEL;
    for (int64_t t = 0; t < tokens; t += 4, place += BYTE_PANEL) {
      ints word{};
      for (int64_t b = 0; b < std::min<int64_t>(4, tokens - t); ++b) {
        const floats scaled = load(x + (t + b) * columns + column, n) * inverse + magic;
        const wrapping q = (wrapping)bits_of(scaled) - (wrapping)bits_of(magic);
        total += q;
        word |= (ints)(q & 0xff) << static_cast<int>(8 * b);
      }
      std::memcpy(as_signed.data() + place, &word, sizeof word);
      word ^= static_cast<int32_t>(0x80808080);
      std::memcpy(as_unsigned.data() + place, &word, sizeof word);
    }
    total *= 128;
    std::memcpy(excess.data() + column, &total, sizeof total);
  }

  // Adds what BYTE_GROUP columns from `top` on and the panel from column `left` on come to.
  void add_group(int64_t top, int64_t left, float* sums) const {
    const int32_t* by = as_signed.data() + top / BYTE_PANEL * words * BYTE_PANEL + top % BYTE_PANEL;
    const int32_t* with = as_unsigned.data() + left / BYTE_PANEL * words * BYTE_PANEL;
    ints found[BYTE_GROUP][BYTE_VECTORS] = {};
    for (int64_t word = 0; word < words; ++word, by += BYTE_PANEL, with += BYTE_PANEL) {
      ints right[BYTE_VECTORS];
#pragma GCC unroll 3
      for (int c = 0; c < BYTE_VECTORS; ++c)
        std::memcpy(&right[c], with + c * kLanes, sizeof(ints));
#pragma GCC unroll 8
      for (int r = 0; r < BYTE_GROUP; ++r)
#pragma GCC unroll 3
        for (int c = 0; c < BYTE_VECTORS; ++c) found[r][c] = add_bytes(found[r][c], right[c], by[r]);
    }
    for (int64_t r = 0; r < std::min<int64_t>(BYTE_GROUP, columns - top); ++r)
      for (int c = 0; c < BYTE_VECTORS; ++c) {
        const int64_t column = left + c * kLanes;
        const int n = static_cast<int>(std::clamp<int64_t>(columns - column, 0, kLanes));
        if (n == 0) break;
        float* place = sums + (top + r) * columns + column;
        const floats exact = __builtin_convertvector(
            (ints)((wrapping)found[r][c] - static_cast<uint32_t>(excess[top + r])), floats);
        const floats step = load(steps.data() + column, kLanes) * steps[top + r];
        store(fused(exact, step, load(place, n)), place, n);
      }
  }
};

void add_rounded_products(Tensor sums, const Tensor& x) {
  STD_TORCH_CHECK(x.is_contiguous() && sums.is_contiguous() && x.dim() == 2 && sums.dim() == 2 &&
                      sums.size(0) == x.size(1) && sums.size(1) == x.size(1) &&
                      x.scalar_type() == ScalarType::BFloat16 &&
                      sums.scalar_type() == ScalarType::Float,
                  "add_rounded_products: contiguous x [tokens, n] bfloat16, sums [n, n] float32");
  const int64_t tokens = x.size(0), columns = x.size(1);
  if (columns == 0) return;
  const auto* from = static_cast<const bf16*>(x.data_ptr());
  auto* to = static_cast<float*>(sums.data_ptr());
  for (int64_t start = 0; start < tokens; start += BYTE_SLAB) {
    const int64_t count = std::min(BYTE_SLAB, tokens - start);
    Bytes bytes(columns, count);
    Queue vectors, rows;
    in_team(torch::stable::get_num_threads(), [&](Member member) {
      for (int64_t v; (v = vectors.next()) * kLanes < columns;)
        bytes.pack(from + start * columns, count, v * kLanes);
      member.wait();
      for (int64_t row; (row = rows.next()) < bytes.panels();)
        for (int64_t left = row * BYTE_PANEL; left < columns; left += BYTE_PANEL)
          for (int64_t top = row * BYTE_PANEL;
               top < std::min(columns, (row + 1) * BYTE_PANEL); top += BYTE_GROUP)
            bytes.add_group(top, left, to);
    });
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("add_rounded_products", TORCH_BOX(&add_rounded_products));
}

}  // namespace ridgeline
