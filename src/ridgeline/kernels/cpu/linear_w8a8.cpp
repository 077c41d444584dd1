// Linear layers with int8 weights and activations that are rounded to int8 (W8A8).
//
//   a = max |x[m, :]| / 127.5, or one for all rows        xq = clamp(round(x / a), −128, 127)
//   out[m, o] = a · s[o] · Σ_k xq[m, k] q[o, k] + b[o]
//
// A panel holds [depth / 4][32 outputs][4]. Where the CPU multiplies four bytes at once, sums of
// products are exact in int32: x86 multiplies unsigned by signed bytes, so rows are kept as xq + 128
// and 128 Σ_k q[o, k], which `sums` holds, is taken off at the end; ARM takes them as they are.
// AMX multiplies tiles of 16 rows, 64 bytes of the depth and 16 outputs; two such tiles lie side by
// side in a panel as they are, and sums are the same integers, so which of the two multiplies is told
// by the time alone. Other CPUs multiply and add them as floats (linear_vectors.h): exact up to 2^24,
// then rounded. Where bytes are multiplied, decoder_layers.cpp is told of it (formats.h).
#include "formats.h"
#include "linear_panels.h"

#include <cmath>

#if defined(__linux__) && defined(__AVX512VNNI__) && defined(__AMX_INT8__) && \
    defined(__AMX_TILE__) && defined(__AVX512BF16__)
#define RIDGELINE_TILES
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ridgeline::linear {
namespace {

// Sums of the products of four bytes each, added to `sums`; x has the rows of one factor.
#if defined(__AVX512VNNI__)
#define RIDGELINE_BYTE_DOT
#ifdef __AVX512BF16__
#define RIDGELINE_SIXTEEN
#endif
constexpr int OFFSET = 128, ROWS_OF_BYTES = 12;
inline Words add_dots(Words sums, Words x, Words weights) {
  return (Words)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)x, (__m512i)weights);
}
#elif defined(__AVXVNNI__)
#define RIDGELINE_BYTE_DOT
constexpr int OFFSET = 128, ROWS_OF_BYTES = 2;
inline Words add_dots(Words sums, Words x, Words weights) {
  return (Words)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)x, (__m256i)weights);
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define RIDGELINE_BYTE_DOT
constexpr int OFFSET = 0, ROWS_OF_BYTES = 2;
inline Words add_dots(Words sums, Words x, Words weights) {
  return (Words)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)x);
}
#endif

struct Bytes {
  const uint8_t* x;     // [rows, stride], of which depth are xq + OFFSET
  const float* steps;   // [rows]: a
  const int8_t* panels;
  const float* scales;  // [panels · 32]
  const int32_t* sums;  // [panels · 32]: 128 Σ q
  const float* bias;    // [outputs] or null
  int64_t rows, depth, outputs;
  int64_t stride;       // bytes from row to row of x

  int64_t num_panels() const { return (outputs + PANEL - 1) / PANEL; }
};

template <class X>
float largest_of(const X* from, int64_t given) {
  float lanes[32] = {};  // so that the compiler makes vectors of it
  int64_t k = 0;
  for (; k + 32 <= given; k += 32)
    for (int64_t i = 0; i < 32; ++i) {
      const float size = std::fabs(read(from + k + i));
      lanes[i] = size > lanes[i] ? size : lanes[i];
    }
  for (; k < given; ++k) lanes[0] = std::max(lanes[0], std::fabs(read(from + k)));
  return std::max(1e-12f, *std::max_element(lanes, lanes + 32));
}

inline float level_of(float number, float step) {
  return std::clamp(std::nearbyintf(number / step), -128.0f, 127.0f);
}

// Calls put(row, numbers, step) for each row of `given` numbers.
// `fixed`: the step of all rows; 0: each row has its own.
template <class X, class Put>
void step_rows(const X* x, int64_t begin, int64_t end, int64_t given, float fixed, float* steps,
               Put put) {
  for (int64_t row = begin; row < end; ++row) {
    const X* from = x + row * given;
    const float step = fixed > 0.0f ? fixed : largest_of(from, given) / 127.5f;
    steps[row] = step;
    put(row, from, step);
  }
}

constexpr int64_t FEWEST_ROUNDED = 4;  // rows that a thread is worth

#ifdef RIDGELINE_BYTE_DOT
#ifdef __AVX512VNNI__
inline __m512 sixteen(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 sixteen(const uint16_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
#endif

// The levels of a row + OFFSET, and of zeros up to `depth`.
template <class X>
void round_row(const X* from, int64_t given, int64_t depth, float step, uint8_t* to) {
  int64_t k = 0;
#ifdef __AVX512VNNI__
  for (; k + 16 <= given; k += 16) {
    const __m512i levels = _mm512_cvtps_epi32(_mm512_div_ps(sixteen(from + k), _mm512_set1_ps(step)));
    const __m128i bytes = _mm512_cvtsepi32_epi8(levels);  // cut to −128 … 127
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), _mm_xor_si128(bytes, _mm_set1_epi8(-128)));
  }
#endif
  for (; k < given; ++k)
    to[k] = static_cast<uint8_t>(static_cast<int>(level_of(read(from + k), step)) + OFFSET);
  for (; k < depth; ++k) to[k] = OFFSET;
}

template <class X>
void finish(const Bytes& job, int64_t row, int64_t panel, const int32_t* totals, X* out) {
  const int64_t first = panel * PANEL, count = std::min(PANEL, job.outputs - first);
  for (int64_t lane = 0; lane < count; ++lane) {
    const auto sum = static_cast<float>(totals[lane] - (OFFSET == 0 ? 0 : job.sums[first + lane]));
    const float bias = job.bias == nullptr ? 0.0f : job.bias[first + lane];
    write(out + row * job.outputs + first + lane,
          sum * (job.steps[row] * job.scales[first + lane]) + bias);
  }
}

#ifdef RIDGELINE_SIXTEEN
inline void write_sixteen(float* to, __m512 values) { _mm512_storeu_ps(to, values); }
inline void write_sixteen(uint16_t* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(values));
}

// As `finish`, of a panel whose outputs are all asked for.
template <class X>
void finish_whole(const Bytes& job, int64_t row, int64_t panel, const int32_t* totals, X* out) {
  for (int64_t lane = panel * PANEL; lane < (panel + 1) * PANEL; lane += 16, totals += 16) {
    const __m512i offset = _mm512_loadu_si512(job.sums + lane);
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(totals), offset));
    const __m512 scale =
        _mm512_mul_ps(_mm512_set1_ps(job.steps[row]), _mm512_loadu_ps(job.scales + lane));
    const __m512 bias =
        job.bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(job.bias + lane);
    write_sixteen(out + row * job.outputs + lane, _mm512_fmadd_ps(sum, scale, bias));
  }
}

#endif

template <class X>
void finish_lanes(const Bytes& job, int64_t row, int64_t panel, const int32_t* totals, X* out) {
#ifdef RIDGELINE_SIXTEEN
  if ((panel + 1) * PANEL <= job.outputs) return finish_whole(job, row, panel, totals, out);
#endif
  finish(job, row, panel, totals, out);
}

// R rows by a panel.
template <class X, int R>
void rows_by_panel(const Bytes& job, int64_t panel, int64_t row, X* out) {
  Words sums[R][VECTORS] = {};
  const uint8_t* x = job.x + row * job.stride;
  const int8_t* from = job.panels + panel * job.depth * PANEL;
  for (const uint8_t* end = x + job.depth; x != end; x += 4, from += 4 * PANEL) {
    Words weights[VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) weights[i] = load_vector<Words>(from + i * sizeof(Words));
    __builtin_prefetch(from + FETCHED);
    __builtin_prefetch(from + FETCHED + 64);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * job.stride, sizeof four);
      const Words factor = four - Words{};
#pragma GCC unroll 8
      for (int i = 0; i < VECTORS; ++i) sums[r][i] = add_dots(sums[r][i], factor, weights[i]);
    }
  }
  for (int r = 0; r < R; ++r)
    finish_lanes(job, row + r, panel, reinterpret_cast<int32_t*>(sums[r]), out);
}

template <class X, int R = ROWS_OF_BYTES>
void block_by_panel(const Bytes& job, int64_t panel, int64_t row, int64_t rows, X* out) {
  if constexpr (R > 1)
    if (rows < R) return block_by_panel<X, R - 1>(job, panel, row, rows, out);
  rows_by_panel<X, R>(job, panel, row, out);
}

#ifdef RIDGELINE_TILES
constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64, FEWEST_ROWS_OF_TILES = 4;

// Whether the kernel of the system lets this process use tiles; asked once.
inline bool tiles_allowed() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return allowed;
}

// Tiles of one thread: sums 0 … 3, rows of x 4 and 5, outputs of a panel 6 and 7.
class Tiles {
 public:
  ~Tiles() { _tile_release(); }

  // For blocks of so many rows, at most 32.
  void shape(int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const auto upper = static_cast<uint8_t>(std::min(rows, TILE_ROWS));
    const auto lower = static_cast<uint8_t>(std::max<int64_t>(rows - TILE_ROWS, 1));
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    const uint8_t of[8] = {upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS};
    for (int i = 0; i < 8; ++i) {
      shapes.bytes[i] = TILE_BYTES;
      shapes.rows[i] = of[i];
    }
    _tile_loadconfig(&shapes);
  }

 private:
  int64_t rows_ = 0;
};

// `rows` rows, at most 32, by a panel.
template <class X>
void tiles_by_panel(Tiles& tiles, const Bytes& job, int64_t panel, int64_t row, int64_t rows,
                    X* out) {
  tiles.shape(rows);
  const bool two = rows > TILE_ROWS;
  const uint8_t* x = job.x + row * job.stride;
  const int8_t* from = job.panels + panel * job.depth * PANEL;
  constexpr int64_t LINE = 4 * PANEL;  // bytes from four of the depth to the next four
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < job.depth; k += TILE_BYTES, from += TILE_BYTES * PANEL) {
    _tile_loadd(6, from, LINE);
    _tile_loadd(7, from + LINE / 2, LINE);
    _tile_loadd(4, x + k, job.stride);
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    if (two) {
      _tile_loadd(5, x + TILE_ROWS * job.stride + k, job.stride);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    }
  }
  alignas(64) int32_t totals[2 * TILE_ROWS][PANEL];
  _tile_stored(0, totals[0], sizeof totals[0]);
  _tile_stored(1, totals[0] + PANEL / 2, sizeof totals[0]);
  if (two) {
    _tile_stored(2, totals[TILE_ROWS], sizeof totals[0]);
    _tile_stored(3, totals[TILE_ROWS] + PANEL / 2, sizeof totals[0]);
  }
  for (int64_t r = 0; r < rows; ++r) finish_lanes(job, row + r, panel, totals[r], out);
}

template <class X>
void panels_in_tiles(const Bytes& job, int64_t begin, int64_t end, X* out) {
  Tiles tiles;
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t row = 0; row < job.rows; row += 2 * TILE_ROWS)
      tiles_by_panel(tiles, job, panel, row, std::min(2 * TILE_ROWS, job.rows - row), out);
}
#endif

// Whether tiles multiply so many rows.
inline bool in_tiles([[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t depth) {
#ifdef RIDGELINE_TILES
  return rows >= FEWEST_ROWS_OF_TILES && depth % TILE_BYTES == 0 && tiles_allowed();
#else
  return false;
#endif
}

// All rows of a job by panels begin … end, on the thread that calls it.
template <class X>
void share_bytes(const Bytes& job, int64_t begin, int64_t end, X* out) {
#ifdef RIDGELINE_TILES
  if (in_tiles(job.rows, job.depth)) return panels_in_tiles(job, begin, end, out);
#endif
  const int64_t blocks = (job.rows + ROWS_OF_BYTES - 1) / ROWS_OF_BYTES;
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = b * job.rows / blocks, last = (b + 1) * job.rows / blocks;
      block_by_panel<X>(job, panel, first, last - first, out);
    }
}

// Calls body(part, its first row) with a job's rows in parts that stay in the cache.
template <class Body>
void in_parts(Bytes job, Body body) {
  const int64_t rows = job.rows;
  const uint8_t* x = job.x;
  const float* steps = job.steps;
  for (int64_t row = 0; row < rows; row += ROWS_AT_ONCE) {
    job.x = x + row * job.stride;
    job.steps = steps + row;
    job.rows = std::min(ROWS_AT_ONCE, rows - row);
    body(job, row);
  }
}

template <class X>
void round_rows(const X* x, int64_t given, int64_t depth, float fixed, const Levels& to,
                int64_t begin, int64_t end) {
  step_rows(x, begin, end, given, fixed, to.steps, [&](int64_t row, const X* from, float step) {
    round_row(from, given, depth, step, to.bytes + row * to.stride);
  });
}

// Bytes from row to row: those a power of two apart would share cache sets in tiles.
inline int64_t stride_of(int64_t rows, int64_t depth) {
  return depth + (in_tiles(rows, depth) ? 64 : 0);
}

template <class X>
void multiply_bytes(Bytes job, const X* x, int64_t given, float step, X* out) {
  job.stride = stride_of(job.rows, job.depth);
  std::vector<uint8_t> bytes(job.rows * job.stride);
  std::vector<float> steps(job.rows);
  const Levels levels{bytes.data(), steps.data(), job.stride};
  torch::stable::parallel_for(0, job.rows, FEWEST_ROUNDED, [&](int64_t begin, int64_t end) {
    round_rows(x, given, job.depth, step, levels, begin, end);
  });
  job.x = bytes.data();
  job.steps = steps.data();
  in_parts(job, [&](const Bytes& part, int64_t row) {
    torch::stable::parallel_for(0, part.num_panels(), 1, [&](int64_t begin, int64_t end) {
      share_bytes(part, begin, end, out + row * part.outputs);
    });
  });
}

// The same as decoder_layers.cpp calls it, whose rows are rounded already.
template <class X>
RoundedFormat format_of_bytes() {
  const auto round = [](const void* x, int64_t depth, float fixed, const Levels& to, int64_t begin,
                        int64_t end) {
    round_rows(static_cast<const X*>(x), depth, depth, fixed, to, begin, end);
  };
  const auto share = [](const Job& job, int64_t begin, int64_t end) {
    const Bytes whole{job.levels.bytes,
                      job.levels.steps,
                      reinterpret_cast<const int8_t*>(job.panels),
                      static_cast<const float*>(job.scales),
                      job.offsets,
                      job.bias,
                      job.rows,
                      job.depth,
                      job.outputs,
                      job.levels.stride};
    in_parts(whole, [&](const Bytes& part, int64_t row) {
      share_bytes(part, begin, end, static_cast<X*>(job.out) + row * job.outputs);
    });
  };
  return {round, share};
}

RoundedFormat rounded_format(ScalarType x) {
  if (x == ScalarType::Float) return format_of_bytes<float>();
  return x == ScalarType::BFloat16 ? format_of_bytes<uint16_t>() : RoundedFormat{};
}

[[maybe_unused]] static const bool known = add_rounded_format(rounded_format);
#endif

// The format of a panel, for linear_vectors.h.
struct Fours {
  static constexpr bool WIDE = false;
  static constexpr int64_t STEP = 4, BYTES = 128;
  template <class Sink>
  static void line(const uint8_t* from, Sink sink) {
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; ++i) {
      const auto fours = load_vector<Words>(from + i * sizeof(Words));
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        sink(k, i, __builtin_convertvector(fours << (24 - 8 * k) >> 24, Floats));
    }
  }
};

template <class X>
void multiply_floats(const Bytes& bytes, const X* x, int64_t given, float step, X* out) {
  std::vector<float> levels(bytes.rows * bytes.depth), steps(bytes.rows);
  std::vector<float> totals(bytes.rows * bytes.outputs);
  torch::stable::parallel_for(0, bytes.rows, FEWEST_ROUNDED, [&](int64_t begin, int64_t end) {
    step_rows(x, begin, end, given, step, steps.data(), [&](int64_t row, const X* from, float each) {
      for (int64_t k = 0; k < given; ++k)
        levels[row * bytes.depth + k] = level_of(read(from + k), each);
    });
  });
  Job job{};
  job.x = levels.data();
  job.out = totals.data();
  job.panels = reinterpret_cast<const uint8_t*>(bytes.panels);
  job.panel_bytes = bytes.depth * PANEL;
  job.scales = bytes.scales;
  job.rows = bytes.rows;
  job.depth = job.group = bytes.depth;
  job.outputs = bytes.outputs;
  torch::stable::parallel_for(0, job.num_panels(), 1, [&](int64_t begin, int64_t end) {
    share_vectors<Fours, float>(job, begin, end);
  });
  torch::stable::parallel_for(0, bytes.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < bytes.outputs; ++i) {
        const float bias = bytes.bias == nullptr ? 0.0f : bytes.bias[i];
        write(out + row * bytes.outputs + i, totals[row * bytes.outputs + i] * steps[row] + bias);
      }
  });
}

template <class X>
void run(const Bytes& job, const void* x, int64_t given, float step, void* out, bool portable) {
#ifdef RIDGELINE_BYTE_DOT
  if (!portable)
    return multiply_bytes(job, static_cast<const X*>(x), given, step, static_cast<X*>(out));
#endif
  multiply_floats(job, static_cast<const X*>(x), given, step, static_cast<X*>(out));
}

Tensor linear_w8a8(const Tensor& x, const Tensor& panels, const Tensor& scales, const Tensor& sums,
                   const std::optional<Tensor>& bias, int64_t outputs, std::optional<double> step,
                   bool portable) {
  const int64_t given = x.size(x.dim() - 1), depth = panels.size(1) * 4;
  STD_TORCH_CHECK(!step || *step > 0.0, "linear: a step of inputs is above 0");
  const auto fixed = static_cast<float>(step.value_or(0.0));
  STD_TORCH_CHECK(given <= depth && given > depth - 4, "linear: x has ", given,
                  " features, the weight ", depth);
  const Tensor rows = x.is_contiguous() ? x : torch::stable::contiguous(x);
  Tensor out = empty_like_but_last(x, outputs);
  const Bytes job{nullptr,
                  nullptr,
                  static_cast<const int8_t*>(panels.data_ptr()),
                  static_cast<const float*>(scales.data_ptr()),
                  static_cast<const int32_t*>(sums.data_ptr()),
                  bias.has_value() ? static_cast<const float*>(bias->data_ptr()) : nullptr,
                  x.numel() / given,
                  depth,
                  outputs,
                  depth};
  if (x.scalar_type() == ScalarType::Float) {
    run<float>(job, rows.data_ptr(), given, fixed, out.data_ptr(), portable);
  } else {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::BFloat16, "linear: x is float32 or bfloat16");
    run<uint16_t>(job, rows.data_ptr(), given, fixed, out.data_ptr(), portable);
  }
  return out;
}

}  // namespace
}  // namespace ridgeline::linear

STABLE_TORCH_LIBRARY_IMPL(ridgeline, CPU, m) {
  m.impl("linear_w8a8", TORCH_BOX(&ridgeline::linear::linear_w8a8));
}
