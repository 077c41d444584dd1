// How a team of threads computes a stack of decoder layers; what it computes stands in
// ../decoder_layers.py.
//
// One team goes through all layers, so that neither Python nor the dispatcher nor the start of
// threads stands between two products. A thread waits only where it reads what others have written:
// before each product, and around attention. Elementwise work is done by whoever multiplied the
// columns, as long as they are in its cache. Products and attention give every row the same bits
// whatever the number of threads and rows, and so does the whole.

#pragma once

#include <algorithm>

#include "attention_problem.h"
#include "cache_write.h"
#include "formats.h"
#include "gated_activation.h"
#include "norm.h"
#include "team.h"

namespace ridgeline {
namespace {  // every source has its own, compiled into its loops

using linear::Job;
using linear::PANEL;
using linear::Share;

struct Product {
  Job job;
  Share share;
  int64_t panels() const { return job.num_panels(); }
};

// In the order in which the operator is given them.
enum Linear { kQuery, kKey, kValue, kOut, kGate, kUp, kDown, kLinears };

// Who reads rounded activations, in the order in which they are computed.
enum Reader { kOfAttention, kOfOut, kOfMlp, kOfDown, kReaders };

// How activations are rounded to bytes for products that multiply bytes; null: they are not.
struct Rounding {
  decltype(linear::RoundedFormat::round) round;
  float fixed;
};

struct Layer {
  Rounding roundings[kReaders];
  const void *norm, *norm_of_mlp;
  const void *norm_of_queries, *norm_of_keys;  // or null
  Product products[kLinears];
  Problem attention;
  const Plan* plan;
  Turns* turns;
  Shelf keys, values;
};

// Sizes and tensors of the whole stack; T tokens, in type Element.
struct Stack {
  int64_t tokens, hidden, inner, heads, kv_heads, size, block;
  float eps, offset;
  bool round_first, gelu;
  const void *cos, *sin;
  const int64_t* slots;
  Write write;
  // Buffers, [T, …]: x, normed and product of `hidden`, the others of what they are called.
  void *x, *normed, *product, *queries, *keys, *values, *attended, *gates, *ups;
  float* states;  // of attention
  linear::Levels levels;  // of whichever buffer was rounded last
};

// A member's part of all products, whose panels lie end to end.
void multiply(const Product* products, int count, Member member) {
  int64_t total = 0;
  for (int i = 0; i < count; ++i) total += products[i].panels();
  Range left = member.own(total);
  for (int i = 0; i < count; ++i) {
    const int64_t panels = products[i].panels();
    const int64_t begin = std::clamp<int64_t>(left.begin, 0, panels);
    const int64_t end = std::clamp<int64_t>(left.end, 0, panels);
    if (begin < end) products[i].share(products[i].job, begin, end);
    left = {left.begin - panels, left.end - panels};
  }
}

// The columns of a member's panels of one product.
Range own_columns(const Product& product, Member member) {
  const Range panels = member.own(product.panels());
  return {panels.begin * PANEL, std::min(panels.end * PANEL, product.job.outputs)};
}

// One product added to x: x ← x + product, each rounded as a model of two steps does.
template <class T>
void add_product(const Product& product, const Stack& s, Member member) {
  multiply(&product, 1, member);
  const Range columns = own_columns(product, member);
  for (int64_t t = 0; t < s.tokens; ++t) {
    T* x = static_cast<T*>(s.x) + t * s.hidden;
    const T* added = static_cast<const T*>(s.product) + t * s.hidden;
    for (int64_t d = columns.begin; d < columns.end; d += kLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, columns.end - d));
      store(load(x + d, n) + load(added + d, n), x + d, n);
    }
  }
  member.wait();
}

// A member's rows of what products read, rounded where those multiply bytes.
inline void round_own(const Rounding& rounding, const void* x, int64_t width, const Stack& s,
                      Range own) {
  if (rounding.round) rounding.round(x, width, rounding.fixed, s.levels, own.begin, own.end);
}

// The same of what several members have written.
inline void round_all(const Rounding& rounding, const void* x, int64_t width, const Stack& s,
                      Member member) {
  if (!rounding.round) return;
  round_own(rounding, x, width, s, member.own(s.tokens));
  member.wait();
}

template <class T>
void normalise_rows(const void* weight, const Rounding& rounding, const Stack& s, Member member) {
  const Range own = member.own(s.tokens);
  for (int64_t t = own.begin; t < own.end; ++t)
    normalise(static_cast<const T*>(s.x) + t * s.hidden, static_cast<const T*>(weight),
              static_cast<T*>(s.normed) + t * s.hidden, static_cast<int>(s.hidden), s.eps, s.offset,
              s.round_first);
  round_own(rounding, s.normed, s.hidden, s, own);
  member.wait();
}

// Turns the pairs (i, i + D / 2) of a head by their angles: x · cos + (−x₂, x₁) · sin (Su et al.,
// 2104.09864, in the halves of GPT-NeoX), rounded after each operation as models do.
template <class T>
void rotate(T* row, const T* cos, const T* sin, int size) {
  const int half = size / 2;
  for (int d = 0; d < half; d += kLanes) {
    const int n = half - d, e = d + half;
    const floats a = load(row + d, n), b = load(row + e, n);
    const floats first = rounded<T>(a * load(cos + d, n));
    const floats second = rounded<T>(b * load(cos + e, n));
    store(first + rounded<T>(-b * load(sin + d, n)), row + d, n);
    store(second + rounded<T>(a * load(sin + e, n)), row + e, n);
  }
}

// Queries and keys get their norms and positions, keys and values go to the cache.
template <class T>
void place_heads(const Layer& layer, const Stack& s, Member member) {
  const int size = static_cast<int>(s.size);
  const int64_t per_token = s.heads + 2 * s.kv_heads;
  const Range own = member.own(s.tokens * per_token);
  for (int64_t i = own.begin; i < own.end; ++i) {
    const int64_t t = i / per_token, at = i % per_token;
    const bool is_query = at < s.heads, is_value = at >= s.heads + s.kv_heads;
    const int64_t head = is_query ? at : (at - s.heads) % s.kv_heads;
    const int64_t heads = is_query ? s.heads : s.kv_heads;
    void* of = is_query ? s.queries : is_value ? s.values : s.keys;
    T* row = static_cast<T*>(of) + (t * heads + head) * size;
    if (!is_value) {
      const void* weight = is_query ? layer.norm_of_queries : layer.norm_of_keys;
      if (weight)
        normalise(row, static_cast<const T*>(weight), row, size, s.eps, s.offset, s.round_first);
      rotate(row, static_cast<const T*>(s.cos) + t * size, static_cast<const T*>(s.sin) + t * size,
             size);
    }
    if (is_query || s.slots[t] < 0) continue;
    const int64_t slot = row_of(s.slots[t], head, s.kv_heads, s.block);
    s.write(row, is_value ? layer.values : layer.keys, slot, head);
  }
  member.wait();
}

// Each member activates the columns that it has multiplied.
template <class T>
void gate(const Layer& layer, const Stack& s, Member member) {
  multiply(&layer.products[kGate], 1, member);
  multiply(&layer.products[kUp], 1, member);
  const Range columns = own_columns(layer.products[kGate], member);
  for (int64_t t = 0; t < s.tokens; ++t) {
    T* gates = static_cast<T*>(s.gates) + t * s.inner;
    const T* ups = static_cast<const T*>(s.ups) + t * s.inner;
    if (s.gelu)
      gate_row<GeluTanh>(gates, ups, gates, columns.begin, columns.end);
    else
      gate_row<Silu>(gates, ups, gates, columns.begin, columns.end);
  }
  member.wait();
}

// Called by every member of the team.
template <class T>
void pass(const Layer& layer, const Stack& s, Member member) {
  normalise_rows<T>(layer.norm, layer.roundings[kOfAttention], s, member);
  multiply(&layer.products[kQuery], 3, member);
  member.wait();
  place_heads<T>(layer, s, member);
  attend_all(layer.attention, *layer.plan, *layer.turns, member, s.states);
  round_all(layer.roundings[kOfOut], s.attended, s.heads * s.size, s, member);
  add_product<T>(layer.products[kOut], s, member);
  normalise_rows<T>(layer.norm_of_mlp, layer.roundings[kOfMlp], s, member);
  gate<T>(layer, s, member);
  round_all(layer.roundings[kOfDown], s.gates, s.inner, s, member);
  add_product<T>(layer.products[kDown], s, member);
}

}  // namespace
}  // namespace ridgeline
