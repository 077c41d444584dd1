// Sixteen floats as one value, and how every stored type becomes them.
//
// `floats` is GCC's vector type: operators work on any CPU and are single instructions with AVX-512,
// whose intrinsics are used where operators have no word for it (conversion, partial loads).

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define RIDGELINE_AVX512
#endif
#if defined(RIDGELINE_AVX512) || defined(__F16C__)
#include <immintrin.h>
#endif
#if defined(RIDGELINE_AVX512) && defined(__AVX512BF16__)
#define RIDGELINE_BF16_DOT
#endif

namespace ridgeline {

struct bf16 {
  uint16_t bits;
};
struct fp8 {  // e4m3fn: one sign, four exponent, three mantissa bits; no infinity, 0x7f is NaN
  uint8_t bits;
};
struct half {  // IEEE binary16; compilers differ in what they call it and where they know it
  uint16_t bits;
};

constexpr int kLanes = 16;
using floats = float __attribute__((vector_size(64)));
using ints = int32_t __attribute__((vector_size(64)));

inline floats all(float x) { return floats{} + x; }
inline ints iota() { return ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
inline floats larger(floats a, floats b) { return a > b ? a : b; }

inline floats fused(floats a, floats b, floats c) {  // a · b + c
#ifdef RIDGELINE_AVX512
  return _mm512_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline float sum(floats x) {
#ifdef RIDGELINE_AVX512
  return _mm512_reduce_add_ps(x);
#endif
  float total[kLanes];
  std::memcpy(total, &x, sizeof total);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) total[i] += total[i + half];
  return total[0];
}

inline float largest(floats x) {
#ifdef RIDGELINE_AVX512
  return _mm512_reduce_max_ps(x);
#endif
  float most[kLanes];
  std::memcpy(most, &x, sizeof most);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
  return most[0];
}

// e^x to two units in the last place; 0 far below, NaN for NaN. Cephes' polynomial of expf.
inline floats exponential(floats x) {
  const floats low = all(-104.0f);
#ifdef RIDGELINE_AVX512
  x = _mm512_max_ps(low, x);
  const floats n = _mm512_roundscale_ps(x * 1.44269504088896341f, _MM_FROUND_TO_NEAREST_INT);
#else
  const floats inside = x < -87.0f ? all(-87.0f) : (x > 88.0f ? all(88.0f) : x);
  const floats n = (inside * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
  const floats given = x;
  x = inside;
#endif
  floats r = fused(n, all(-0.693359375f), x);
  r = fused(n, all(2.12194440e-4f), r);
  floats y = all(1.9875691500e-4f);
  y = fused(y, r, all(1.3981999507e-3f));
  y = fused(y, r, all(8.3334519073e-3f));
  y = fused(y, r, all(4.1665795894e-2f));
  y = fused(y, r, all(1.6666665459e-1f));
  y = fused(y, r, all(5.0000001201e-1f));
  y = fused(y, r * r, r) + 1.0f;
#ifdef RIDGELINE_AVX512
  return _mm512_scalef_ps(y, n);
#else
  ints power = (__builtin_convertvector(n, ints) + 127) << 23;
  floats two;
  std::memcpy(&two, &power, sizeof two);
  y = y * two;
  return given < -87.0f ? floats{} : y;
#endif
}

// 1 − 2 / (e^2x + 1): exact to 1e-7 of 1, which is what a soft cap needs.
inline floats hyperbolic_tangent(floats x) {
  const floats inside = x > 20.0f ? all(20.0f) : x;
  return 1.0f - 2.0f / (exponential(inside * 2.0f) + 1.0f);
}

inline float to_float(float x) { return x; }
inline float to_float(int8_t x) { return static_cast<float>(x); }
inline float to_float(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}
inline float to_float(half x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
  __fp16 y;
  std::memcpy(&y, &x, sizeof y);
  return y;
#else
  const uint32_t magnitude = x.bits & 0x7fff, sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  uint32_t bits = magnitude << 13;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  y *= 0x1p112f;  // the exponents' biases differ by so much; subnormals come out right as well
  std::memcpy(&bits, &y, sizeof bits);
  bits |= sign | (magnitude >= 0x7c00 ? 0x7f800000 : 0);  // infinity, NaN
  std::memcpy(&y, &bits, sizeof y);
  return y;
#endif
}
inline float to_float(fp8 x) {
  if ((x.bits & 0x7f) == 0x7f) return NAN;
  const uint32_t magnitude = x.bits & 0x7f, mantissa = x.bits & 7;
  const uint32_t bits = (magnitude << 20) + (120u << 23);
  float y;
  std::memcpy(&y, &bits, sizeof y);
  if (magnitude < 8) y = static_cast<float>(mantissa) * 0x1p-9f;
  return x.bits & 0x80 ? -y : y;
}

#ifdef RIDGELINE_AVX512
inline __mmask16 first(int n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffff : n > 0 ? (1u << n) - 1 : 0);
}
#endif

// The first n ≤ 16 elements as floats, zeros behind them.
template <class T>
inline floats load(const T* from, int n = kLanes) {
  floats y{};
  for (int i = 0; i < (n < kLanes ? n : kLanes); ++i) y[i] = to_float(from[i]);
  return y;
}
#ifdef RIDGELINE_AVX512
template <>
inline floats load(const float* from, int n) {
  return _mm512_maskz_loadu_ps(first(n), from);
}
template <>
inline floats load(const bf16* from, int n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first(n), from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
template <>
inline floats load(const half* from, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), from));
}
template <>
inline floats load(const int8_t* from, int n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), from)));
}
template <>
inline floats load(const fp8* from, int n) {
  // The bits of a half whose exponent is 8 too small: its subnormals come out right as well.
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_maskz_loadu_epi8(first(n), from));
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
  const floats y = _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign)) * 256.0f;
  return _mm512_mask_blend_ps(nan, y, all(NAN));
}
#endif

inline void put(float x, float* to) { *to = x; }
inline void put(float x, half* to) {  // to nearest, ties to even
#if defined(__F16C__)
  to->bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  const auto y = static_cast<__fp16>(x);
  std::memcpy(to, &y, sizeof y);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) {
    bits = 0x7e00;
  } else if (bits >= 0x47800000) {  // 2^16
    bits = 0x7c00;
  } else if (bits < 0x38800000) {  // below 2^-14: steps of 2^-24, which a float of 2^-1 counts
    float small;
    std::memcpy(&small, &bits, sizeof small);
    small += 0.5f;
    std::memcpy(&bits, &small, sizeof bits);
    bits -= 0x3f000000;
  } else {
    bits = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
  }
  to->bits = static_cast<uint16_t>(sign | bits);
#endif
}
inline void put(float x, bf16* to) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) {
    to->bits = 0x7fc0;
    return;
  }
  to->bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The first n ≤ 16 floats to memory, rounded to nearest.
template <class T>
inline void store(floats x, T* to, int n = kLanes) {
  for (int i = 0; i < (n < kLanes ? n : kLanes); ++i) put(x[i], to + i);
}
#ifdef RIDGELINE_AVX512
template <>
inline void store(floats x, float* to, int n) {
  _mm512_mask_storeu_ps(to, first(n), x);
}
template <>
inline void store(floats x, half* to, int n) {
  _mm256_mask_storeu_epi16(to, first(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#endif
#ifdef RIDGELINE_BF16_DOT
template <>
inline void store(floats x, bf16* to, int n) {
  _mm256_mask_storeu_epi16(to, first(n), (__m256i)_mm512_cvtneps_pbh(x));
}
#endif

}  // namespace ridgeline
