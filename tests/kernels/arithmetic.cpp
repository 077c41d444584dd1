// What the kernels' headers compute, against plain loops in double precision; no torch is linked.
// Built for CPUs that are not at hand and run under emulation. Ends with 1 and a line where it differs.

#include <cmath>
#include <cstdio>
#include <random>

#include "attention.h"
#include "gated_activation.h"
#include "norm.h"

namespace ridgeline {
namespace {

std::mt19937 generator(1);
int failures = 0;

float drawn(float size = 1.0f) { return std::normal_distribution<float>(0.0f, size)(generator); }

void expect(const char* what, double found, double expected, double tolerance) {
  if (std::fabs(found - expected) <= tolerance * (1.0 + std::fabs(expected))) return;
  if (++failures <= 20) std::printf("%s: %.9g, not %.9g\n", what, found, expected);
}

template <class T>
T as(float x) {
  T y;
  if constexpr (std::is_same_v<T, int8_t>)
    y = static_cast<int8_t>(std::nearbyint(std::fmin(std::fmax(20.0f * x, -128.0f), 127.0f)));
  else
    put(x, &y);
  return y;
}
template <>
fp8 as(float x) {  // any of its numbers will do
  return {static_cast<uint8_t>(static_cast<int>(std::fabs(x) * 40.0f) % 96 + (x < 0 ? 128 : 0))};
}

// Over all numbers of a type: reading, and writing back.
void check_conversions() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const half small{static_cast<uint16_t>(bits)};
    const bf16 wide{static_cast<uint16_t>(bits)};
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent < 31) {
      const double expected = exponent == 0 ? std::ldexp(mantissa, -24)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
      expect("half", to_float(small), sign * expected, 0.0);
      half back;
      put(to_float(small), &back);
      expect("to half", back.bits, bits, 0.0);
    }
    if ((bits & 0x7f80) != 0x7f80) {
      bf16 back;
      put(to_float(wide), &back);
      expect("to bf16", back.bits, bits, 0.0);
    }
  }
  half tie;
  put(1.0f + 0x1p-11f, &tie);
  expect("a tie goes to even", tie.bits, 0x3c00, 0.0);
  put(1.0f + 3 * 0x1p-11f, &tie);
  expect("a tie goes to even", tie.bits, 0x3c02, 0.0);
  for (int bits = 0; bits < 0x7f; ++bits) {
    const int exponent = bits >> 3, mantissa = bits & 7;
    const double expected =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    expect("float8", to_float(fp8{static_cast<uint8_t>(bits)}), expected, 0.0);
    float two[kLanes];
    const fp8 rows[2] = {{static_cast<uint8_t>(bits)}, {static_cast<uint8_t>(bits | 128)}};
    store(load(rows, 2), two);
    expect("float8", two[1], -expected, 0.0);
    expect("float8 beyond its end", two[2], 0.0, 0.0);
  }
}

void check_functions() {
  for (float x = -110.0f; x < 88.0f; x += 0.37f) {
    float found[kLanes];
    store(exponential(all(x)), found);
    const double expected = std::exp(double{x});
    if (x < -87.0f)  // a subnormal, or nothing
      expect("exponential", found[3], expected, 1e-37);
    else
      expect("exponential", found[3] / expected, 1.0, 3e-7);
    store(hyperbolic_tangent(all(x)), found);
    expect("hyperbolic tangent", found[0], std::tanh(double{x}), 3e-7);
  }
}

template <class T>
void check_rows(double tolerance) {
  for (int size : {1, 20, 64, 100, 257}) {
    std::vector<T> x(size), weight(size), out(size);
    double squares = 0.0;
    for (int d = 0; d < size; ++d) {
      x[d] = as<T>(drawn());
      weight[d] = as<T>(drawn());
      squares += double{to_float(x[d])} * to_float(x[d]);
    }
    normalise(x.data(), weight.data(), out.data(), size, 1e-5f, 1.0f, false);
    for (int d = 0; d < size; ++d)
      expect("norm", to_float(out[d]),
             to_float(x[d]) / std::sqrt(squares / size + 1e-5) * (to_float(weight[d]) + 1.0),
             tolerance);
    gate_row<Silu>(x.data(), weight.data(), out.data(), 0, size);
    for (int d = 0; d < size; ++d)
      expect("gated", to_float(out[d]),
             to_float(x[d]) / (1.0 + std::exp(-double{to_float(x[d])})) * to_float(weight[d]),
             2.0 * tolerance);
  }
}

// Sequences of (queries, context) over a cache whose blocks lie in reverse.
template <class Given, class Stored>
void check_attention(int size, int window, float softcap, bool scaled, double tolerance) {
  constexpr int kBlock = 6, kKv = 2, kGroup = 3, kHeads = kKv * kGroup, kBlocks = 96;
  const std::vector<std::pair<int, int>> sequences = {{1, 150}, {5, 5}, {60, 131}, {1, 1}};
  const int64_t rows = int64_t{kBlocks} * kKv * kBlock;
  std::vector<Stored> keys(rows * size), values(rows * size);
  std::vector<float> key_scales(rows), value_scales(rows), sinks(kHeads);
  for (auto* of : {&keys, &values})
    for (Stored& one : *of) one = as<Stored>(drawn());
  for (auto* of : {&key_scales, &value_scales})
    for (float& one : *of) one = scaled ? 0.02f + std::fabs(drawn(0.02f)) : 1.0f;
  for (float& one : sinks) one = drawn();
  std::vector<int32_t> starts = {0}, lengths, tables;
  int next = kBlocks - 1;
  for (const auto& [queries, length] : sequences) {
    starts.push_back(starts.back() + queries);
    lengths.push_back(length);
    for (int i = 0; i < 32; ++i) tables.push_back(i * kBlock < length ? next-- : -1);
  }
  const int tokens = starts.back();
  std::vector<Given> queries(tokens * kHeads * size), out(queries.size());
  for (Given& one : queries) one = as<Given>(drawn());

  Problem p{};
  p.queries = reinterpret_cast<const char*>(queries.data());
  p.out = reinterpret_cast<char*>(out.data());
  p.query_type = std::is_same_v<Given, float>  ? ScalarType::Float
                 : std::is_same_v<Given, bf16> ? ScalarType::BFloat16
                                               : ScalarType::Half;
  p.token_stride = kHeads * size;
  p.head_stride = size;
  p.keys = reinterpret_cast<const char*>(keys.data());
  p.values = reinterpret_cast<const char*>(values.data());
  p.key_scales = scaled ? key_scales.data() : nullptr;
  p.value_scales = scaled ? value_scales.data() : nullptr;
  p.sinks = softcap == 0.0f ? sinks.data() : nullptr;
  p.starts = starts.data();
  p.lengths = lengths.data();
  p.tables = tables.data();
  p.table_stride = 32;
  p.heads = kHeads;
  p.kv_heads = kKv;
  p.group = kGroup;
  p.block = kBlock;
  p.size = size;
  p.scale = 0.2f;
  p.softcap = softcap;
  p.window = window;
  p.row_bytes = static_cast<int64_t>(sizeof(Stored)) * size;
  p.pack_keys = pack_keys<float, Stored>;
  p.pack_values = pack_values<float, Stored>;
  Plan plan{tiles_of(p, static_cast<int>(lengths.size())), {}, 0, 1};
  int64_t partial = 0;
  plan.items = split(plan.tiles, partial);
  plan.states = partial * (width_of(p) + 2);
  std::vector<float> states(plan.states);
  Turns turns;
  attend_items<float>(p, plan, turns, Member{0, 1}, states.data());

  for (size_t s = 0; s < lengths.size(); ++s)
    for (int q = starts[s]; q < starts[s + 1]; ++q)
      for (int head = 0; head < kHeads; ++head) {
        const int at = lengths[s] - (starts[s + 1] - q);
        const auto row = [&](int j) {
          return (int64_t{tables[s * 32 + j / kBlock]} * kKv + head / kGroup) * kBlock + j % kBlock;
        };
        const Given* query = queries.data() + (int64_t{q} * kHeads + head) * size;
        std::vector<double> sums(size);
        double total = p.sinks ? std::exp(double{sinks[head]}) : 0.0;
        for (int j = window > 0 ? std::max(0, at - window + 1) : 0; j <= at; ++j) {
          double score = 0.0;
          for (int d = 0; d < size; ++d)
            score += double{to_float(query[d])} * to_float(keys[row(j) * size + d]);
          score *= 0.2 * (scaled ? key_scales[row(j)] : 1.0);
          if (softcap > 0.0f) score = softcap * std::tanh(score / softcap);
          total += std::exp(score);
          const double weight = std::exp(score) * (scaled ? value_scales[row(j)] : 1.0);
          for (int d = 0; d < size; ++d)
            sums[d] += weight * to_float(values[row(j) * size + d]);
        }
        for (int d = 0; d < size; ++d)
          expect("attention", to_float(out[(int64_t{q} * kHeads + head) * size + d]),
                 sums[d] / total, tolerance);
      }
}

}  // namespace
}  // namespace ridgeline

int main() {
  using namespace ridgeline;
  check_conversions();
  check_functions();
  check_rows<float>(3e-6);
  check_rows<bf16>(1e-2);
  check_rows<half>(2e-3);
  check_attention<float, float>(20, 0, 0.0f, false, 2e-5);
  check_attention<float, float>(64, 40, 3.0f, false, 2e-5);
  check_attention<bf16, bf16>(32, 0, 0.0f, false, 1e-2);
  check_attention<half, half>(48, 70, 0.0f, false, 2e-3);
  check_attention<float, int8_t>(32, 0, 5.0f, true, 2e-5);
  check_attention<float, fp8>(16, 33, 0.0f, true, 2e-5);
  std::printf("%d differ\n", failures);
  return failures == 0 ? 0 : 1;
}
