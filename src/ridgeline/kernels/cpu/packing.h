// Keys and values of one block of the context, brought from a paged cache into the order in which
// `tile.h` multiplies, and from the stored type to the one that is multiplied.

#pragma once

#include "tile.h"

namespace ridgeline {

// Sixteen words of at most n elements, zeros behind them.
template <class Element, class Stored>
inline ints load_words(const Stored* from, int n) {
  ints y;
  if constexpr (kWide<Element> == 1) {
    const floats x = load(from, n);
    std::memcpy(&y, &x, sizeof y);
  }
#ifdef RIDGELINE_BF16_DOT
  else if constexpr (sizeof(Stored) == sizeof(bf16)) {
    const __mmask32 kept = n >= 32 ? ~0u : (1u << n) - 1;
    y = (ints)_mm512_maskz_loadu_epi16(kept, from);
  } else {
    const floats low = load(from, n), high = load(from + kLanes, n - kLanes);
    y = (ints)_mm512_cvtne2ps_pbh(high, low);
  }
#endif
  return y;
}

// Transposes 16 rows of 16 words.
inline void transpose(ints (&x)[kLanes]) {
#ifdef RIDGELINE_AVX512
  __m512i a[kLanes], b[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    a[i] = _mm512_unpacklo_epi32((__m512i)x[i], (__m512i)x[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32((__m512i)x[i], (__m512i)x[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    a[i + 8] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    x[i] = (ints)_mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
    x[i + 8] = (ints)_mm512_shuffle_i32x4(a[i], a[i + 8], 0xdd);
  }
#else
  ints y[kLanes];
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j) y[i][j] = x[j][i];
  std::memcpy(x, y, sizeof y);
#endif
}

// Asks for one line of what comes next: a paged context is too scattered for the CPU to guess it.
template <class Stored>
inline void fetch(const void* row, int element) {
  if (row) __builtin_prefetch(static_cast<const Stored*>(row) + element, 0, 2);
}

// Keys as the columns of a product: [⌈count / 16⌉][words of a key][16]. A null pointer is
// a key of zeros; `rows` has one for every key behind the last, up to a multiple of 16.
// `next`, if any, is fetched meanwhile.
template <class Element, class Stored>
void pack_keys(const void* const* rows, int count, int size, word* to, const void* const* next) {
  const int words = words_of<Element>(size);
  for (int first = 0; first < count; first += kLanes, to += words * kLanes) {
    for (int w = 0; w < words; w += kLanes) {
      ints tile[kLanes];
      const int at = w * kWide<Element>;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const auto* row = static_cast<const Stored*>(rows[first + i]);
        if (next) fetch<Stored>(next[first + i], at);
        tile[i] = row ? load_words<Element>(row + at, size - at) : ints{};
      }
      transpose(tile);
      const int kept = words - w < kLanes ? words - w : kLanes;
      for (int i = 0; i < kept; ++i) std::memcpy(to + (w + i) * kLanes, &tile[i], sizeof(ints));
    }
  }
}

// Values as the rows of a product: [words of count values][size, up to a multiple of 16]. A null
// pointer is a value of zeros.
template <class Element, class Stored>
void pack_values(const void* const* rows, int count, int size, word* to,
                 const void* const* next) {
  const int width = (size + kLanes - 1) / kLanes * kLanes;
  if constexpr (kWide<Element> == 1) {
    for (int i = 0; i < count; ++i) {
      for (int d = 0; d < size; d += kLanes) {
        const auto* row = static_cast<const Stored*>(rows[i]);
        if (next) fetch<Stored>(next[i], d);
        const floats x = row ? load(row + d, size - d) : floats{};
        std::memcpy(to + i * width + d, &x, sizeof x);
      }
    }
  }
#ifdef RIDGELINE_BF16_DOT
  else {
    // Words 0..15 and 16..31 of two rows of bf16 interleaved: an element of each row per word.
    alignas(64) uint16_t order[2][32];
    for (int i = 0; i < 32; ++i) {
      order[0][i] = static_cast<uint16_t>(i / 2 + (i % 2) * 32);
      order[1][i] = static_cast<uint16_t>(16 + i / 2 + (i % 2) * 32);
    }
    const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
    for (int i = 0; i < count; i += 2, to += width) {
      const auto* even = static_cast<const Stored*>(rows[i]);
      const auto* odd = static_cast<const Stored*>(rows[i + 1]);
      for (int d = 0; d < size; d += 32) {
        if (next) {
          fetch<Stored>(next[i], d);
          fetch<Stored>(next[i + 1], d);
        }
        const auto a = (__m512i)(even ? load_words<Element>(even + d, size - d) : ints{});
        const auto b = (__m512i)(odd ? load_words<Element>(odd + d, size - d) : ints{});
        _mm512_storeu_si512(to + d, _mm512_permutex2var_epi16(a, low, b));
        if (d + kLanes < width)
          _mm512_storeu_si512(to + d + kLanes, _mm512_permutex2var_epi16(a, high, b));
      }
    }
  }
#endif
}

}  // namespace ridgeline
