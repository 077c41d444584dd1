// Attention over a KV cache in blocks: how a team of threads computes it. What it computes stands
// in ../paged_attention.py. Only paged_attention.cpp takes this in; others call what
// attention_problem.h declares.
//
// The context is taken in blocks of kKeys keys at fixed places (a block of the cache is smaller and
// does not matter here). A tile of rows (query tokens times the query heads that share a key head)
// meets one block after the other:
//
//     m' = max_j s_j,  p_j = e^(s_j − m'),  l' = Σ p_j,  a' = Σ p_j v_j        of the block
//     M ← max(M, m'),  (A, L) ← e^(M_old − M) (A, L) + e^(m' − M) (a', l')     of the row
//
// (the online softmax of Milakov and Gimelshein, 1805.02867). Where there are fewer tiles than
// threads, blocks go to different threads and their (m', l', a') are put together afterwards by the
// same formula in the same order. So every row's result is the same to the last bit, however many
// threads there are and whatever else is in the batch.

#pragma once

#include <algorithm>
#include <vector>

#include "attention_problem.h"
#include "packing.h"

namespace ridgeline {
namespace {

constexpr int kKeys = 128;         // of a block
constexpr int kRows = 48;          // of a tile, at most
constexpr float kNothing = -1e30;  // the largest score where no key is visible

// M, L and A of the rows of a tile.
struct State {
  float *most, *total, *sums;
};

// Buffers of one thread, kept from call to call; every one begins at a cache line.
class Scratch {
 public:
  // Room for this many bytes, of which `take` gives out parts; what was given out before is lost.
  void clear(size_t bytes) {
    bytes += kLine * (kMost + 1);
    if (held_.size() < bytes) held_.resize(bytes);
    next_ = 0;
  }
  template <class T>
  T* take(size_t count) {
    const auto begin = reinterpret_cast<uintptr_t>(held_.data() + next_);
    next_ += (kLine - begin % kLine) % kLine;
    auto* given = reinterpret_cast<T*>(held_.data() + next_);
    next_ += count * sizeof(T);
    return given;
  }

 private:
  static constexpr size_t kLine = 64, kMost = 8;  // bytes; buffers
  std::vector<unsigned char> held_;
  size_t next_ = 0;
};

// Where the keys and values of one block are, and their scales; null pointers behind the last and
// before what any row sees, whose blocks may belong to someone else by now.
struct Places {
  const void *keys[kKeys], *values[kKeys];
  alignas(64) float key_scales[kKeys], value_scales[kKeys];
};

inline int width_of(const Problem& p) { return (p.size + kLanes - 1) / kLanes * kLanes; }

// Takes the (m', l') of a block into the (M, L) of each row; the factors of A and a' come back.
void merge(int rows, State state, const float* block_most, const float* block_total, float* kept,
           float* added) {
  for (int r = 0; r < rows; r += kLanes) {
    const int n = rows - r;
    const floats before = load(state.most + r, n), block = load(block_most + r, n);
    const floats now = larger(before, block);
    const floats old_factor = exponential(before - now), new_factor = exponential(block - now);
    const floats total = load(block_total + r, n) * new_factor;
    store(now, state.most + r, n);
    store(fused(load(state.total + r, n), old_factor, total), state.total + r, n);
    store(old_factor, kept + r, n);
    store(new_factor, added + r, n);
  }
}

// Which keys of a block a row sees: [low, high), those before `first`, and nothing that `hidden`
// (0 or −∞ for each key; or null) takes away.
struct Sight {
  int low, high, first;
  const float* hidden;
};

// The sight of query `query` of a sequence over the block that begins at key `from`. A query with
// `seen` stands in a tree: of the keys from the sequence's first query on it sees those whose bit is
// set, its ancestors and itself, of which the n-th stands at the place `position` + n.
Sight sight_of(const Problem& p, const Item& item, int position, int query, int from,
               float* hidden) {
  const int64_t seen = p.seen ? p.seen[p.starts[item.sequence] + query] : 0;
  const int first = p.first - from;
  if (seen == 0) {
    const int at = position + query;
    return {p.window > 0 ? at - p.window + 1 - from : 0, at + 1 - from, first, nullptr};
  }
  const auto path = static_cast<uint64_t>(seen);
  // An ancestor may stand before this block though its key lies in it.
  const int low = p.window > 0 ? position + __builtin_popcountll(path) - p.window - from : -from;
  const int start = position - from;  // where bit 0 is
  if (start >= kKeys) return {low, kKeys, first, nullptr};
  const uint64_t before = start <= -64 ? ~0ull : start < 0 ? (1ull << -start) - 1 : 0;
  int place = start + __builtin_popcountll(path & before);
  for (int i = 0; i < kKeys; ++i) {
    const int bit = i - start;
    const bool there = bit < 0 || (bit < 64 && (path >> bit & 1));
    const int at = bit < 0 ? i : place;
    hidden[i] = there && (at >= low || at < first) ? 0.0f : -INFINITY;
    place += there && bit >= 0;
  }
  return {0, kKeys, 0, hidden};
}

// Scores of one row and block to weights, a row of `Element`s. `scale` is the problem's, and what
// all keys of the head have in common.
template <class Element>
void weigh(float* scores, int panels, const Sight& sight, float scale, const Problem& p,
           const Places& places, Element* weights, float& most, float& total) {
  const bool plain = !p.key_scales && p.softcap == 0.0f;
  const auto [low, high, first, hidden] = sight;
  floats best = all(kNothing);
  for (int i = 0; i < panels * kLanes; i += kLanes) {
    floats s = load(scores + i) * scale;
    if (!plain) {
      if (p.key_scales) s = s * load(places.key_scales + i);
      if (p.softcap != 0.0f) s = hyperbolic_tangent(s * (1.0f / p.softcap)) * p.softcap;
    }
    if (low > i || high < i + kLanes) {
      const ints at = iota() + i;
      s = (((at >= low) | (at < first)) & (at < high)) ? s : all(-INFINITY);
    }
    if (hidden) s = (load(hidden + i) == all(0.0f)) ? s : all(-INFINITY);
    store(s, scores + i);
    best = larger(s, best);
  }
  most = largest(best);
  floats sums{};
  for (int i = 0; i < panels * kLanes; i += kLanes) {
    floats weight = exponential(load(scores + i) - most);
    sums = sums + weight;
    if (p.value_scales) weight = weight * load(places.value_scales + i);
    store(weight, weights + i);
  }
  total = sum(sums);
}

// The rows of an item, each filled up to whole words.
template <class Element>
void query_rows(const Problem& p, const Item& item, Element* to) {
  const int width = words_of<Element>(p.size) * kWide<Element>;
  for (int r = 0; r < item.rows; ++r, to += width) {
    const int row = item.row + r;
    const int64_t token = p.starts[item.sequence] + row / p.group;
    const int64_t head = item.kv_head * p.group + row % p.group;
    const int64_t from = token * p.token_stride + head * p.head_stride;
    const auto copy = [&](const auto* query) {
      for (int d = 0; d < width; d += kLanes)
        store(load(query + d, p.size - d), to + d, width - d);
    };
    if (p.query_type == ScalarType::Float)
      copy(reinterpret_cast<const float*>(p.queries) + from);
    else if (p.query_type == ScalarType::BFloat16)
      copy(reinterpret_cast<const bf16*>(p.queries) + from);
    else
      copy(reinterpret_cast<const half*>(p.queries) + from);
  }
}

template <class Element>
__attribute__((noinline)) void score(const Element* queries, int rows, const word* keys, int words,
                                     int panels, float* scores) {
  product<Element>(queries, words * kWide<Element>, rows, Columns{keys, kLanes, words * kLanes},
                   words, panels,
                   [&](int r, int c, floats x) { store(x, scores + r * kKeys + c * kLanes); });
}

template <class Element>
__attribute__((noinline)) void accumulate(const Element* weights, int rows, const word* values,
                                          int words, int width, const float* kept,
                                          const float* added, float* sums) {
  product<Element>(weights, kKeys, rows, Columns{values, width, kLanes}, words, width / kLanes,
                   [&](int r, int c, floats x) {
                     float* at = sums + r * width + c * kLanes;
                     store(fused(load(at), all(kept[r]), x * added[r]), at);
                   });
}

// Divides by the sum of the weights and writes the rows of a tile.
void finish(const Problem& p, const Item& item, State state) {
  const int width = width_of(p);
  const float of_values = p.value_factors ? p.value_factors[item.kv_head] : 1.0f;
  for (int r = 0; r < item.rows; ++r) {
    const int row = item.row + r;
    const int64_t token = p.starts[item.sequence] + row / p.group;
    const int64_t head = item.kv_head * p.group + row % p.group;
    float kept = 1.0f, added;
    if (p.sinks) {
      const float one = 1.0f;
      merge(1, {state.most + r, state.total + r, nullptr}, p.sinks + head, &one, &kept, &added);
    }
    const float factor = kept / state.total[r] * of_values;
    const int64_t at = (token * p.heads + head) * p.size;
    const auto write = [&](auto* out) {
      for (int d = 0; d < p.size; d += kLanes)
        store(load(state.sums + r * width + d) * factor, out + d, p.size - d);
    };
    if (p.query_type == ScalarType::Float)
      write(reinterpret_cast<float*>(p.out) + at);
    else if (p.query_type == ScalarType::BFloat16)
      write(reinterpret_cast<bf16*>(p.out) + at);
    else
      write(reinterpret_cast<half*>(p.out) + at);
  }
}

// Of positions [start, end), as far as they are in the block.
void locate(const Problem& p, const Item& item, int block, int start, int end, Places& places) {
  const int32_t* table = p.tables + item.sequence * p.table_stride;
  const int low = std::max(0, start - block * kKeys), high = std::min(kKeys, end - block * kKeys);
  const auto nothing = [&](int i) {
    places.keys[i] = places.values[i] = nullptr;
    places.key_scales[i] = places.value_scales[i] = 0.0f;
  };
  for (int i = 0; i < low; ++i) nothing(i);
  for (int i = high; i < kKeys; ++i) nothing(i);
  for (int i = low; i < high;) {
    const int position = block * kKeys + i, offset = position % p.block;
    const int64_t held = static_cast<int64_t>(table[position / p.block]) * p.kv_heads;
    const int64_t slot = (held + item.kv_head) * p.block + offset;
    const int count = std::min(p.block - offset, high - i);
    for (int k = 0; k < count; ++k) {
      places.keys[i + k] = p.keys + (slot + k) * p.row_bytes;
      places.values[i + k] = p.values + (slot + k) * p.row_bytes;
    }
    if (p.key_scales) std::copy_n(p.key_scales + slot, count, places.key_scales + i);
    if (p.value_scales) std::copy_n(p.value_scales + slot, count, places.value_scales + i);
    i += count;
  }
}

// The first key that some query sees of those from `query` on, which is at `position` + `query`. A
// query in a tree may stand as high as its root; keys before `first` are seen wherever one stands.
int lowest_seen(const Problem& p, int position, int query) {
  if (p.window == 0 || p.first > 0) return 0;
  return std::max(0, position + (p.seen ? 0 : query) - p.window + 1);
}

// Positions that an item's rows see, as a range: from where its first one looks to its last one.
struct Span {
  int position, start, end;  // position: of the sequence's first query
};
Span span_of(const Problem& p, const Item& item) {
  const int position =
      p.lengths[item.sequence] - (p.starts[item.sequence + 1] - p.starts[item.sequence]);
  return {position, lowest_seen(p, position, item.row / p.group),
          position + (item.row + item.rows - 1) / p.group + 1};
}

// `then` is what this thread is likely to be given next, or null: its first keys are fetched.
template <class Element>
void attend(const Problem& p, const Item& item, const Item* then, Scratch& scratch,
            float* partials) {
  const int width = width_of(p), words = words_of<Element>(p.size);
  scratch.clear(sizeof(word) * (kRows * words + 2 * kRows * kKeys + kKeys * words +
                                kKeys * width + kRows * width));
  auto* queries = scratch.take<Element>(kRows * words * kWide<Element>);
  auto* scores = scratch.take<float>(kRows * kKeys);
  auto* weights = scratch.take<Element>(kRows * kKeys);
  auto* keys = scratch.take<word>(kKeys * words);
  auto* values = scratch.take<word>(kKeys * width);
  float most[kRows], total[kRows], block_most[kRows], block_total[kRows];
  float kept[kRows], added[kRows];
  alignas(64) float hidden[kKeys];
  State state{most, total, scratch.take<float>(kRows * width)};
  if (item.partial >= 0) {
    float* at = partials + item.partial * (width + 2);
    state = State{at, at + item.rows, at + 2 * item.rows};
  }
  std::fill_n(state.most, item.rows, kNothing);
  std::fill_n(state.total, item.rows, 0.0f);
  std::fill_n(state.sums, item.rows * width, 0.0f);
  query_rows(p, item, queries);

  const float scale = p.key_factors ? p.scale * p.key_factors[item.kv_head] : p.scale;
  const auto [position, start, end] = span_of(p, item);
  Places places[2];
  locate(p, item, item.first_block, start, end, places[0]);
  for (int block = item.first_block; block < item.last_block; ++block) {
    const Places& here = places[(block - item.first_block) % 2];
    Places& next = places[(block - item.first_block + 1) % 2];
    const int first = block * kKeys, count = std::min(kKeys, end - first);
    const int panels = (count + kLanes - 1) / kLanes;
    p.pack_keys(here.keys, count, p.size, keys, here.values);
    score<Element>(queries, item.rows, keys, words, panels, scores);
    for (int r = 0; r < item.rows; ++r) {
      const Sight sight = sight_of(p, item, position, (item.row + r) / p.group, first, hidden);
      weigh<Element>(scores + r * kKeys, panels, sight, scale, p, here, weights + r * kKeys,
                     block_most[r], block_total[r]);
    }
    merge(item.rows, state, block_most, block_total, kept, added);
    const bool more = block + 1 < item.last_block;
    if (more) {
      locate(p, item, block + 1, start, end, next);
    } else if (then) {
      const Span seen = span_of(p, *then);
      locate(p, *then, then->first_block, seen.start, seen.end, next);
    }
    p.pack_values(here.values, count, p.size, values, more || then ? next.keys : nullptr);
    accumulate<Element>(weights, item.rows, values, words_of<Element>(count), width, kept, added,
                        state.sums);
  }
  if (item.partial < 0) finish(p, item, state);
}

// Puts the states of one tile's blocks together in their order, and writes the output.
void combine(const Problem& p, const Item& tile, const float* partials, Scratch& scratch) {
  const int width = width_of(p), rows = tile.rows;
  float most[kRows], total[kRows];
  scratch.clear(sizeof(float) * rows * width);
  State state{most, total, scratch.take<float>(rows * width)};
  std::fill_n(most, rows, kNothing);
  std::fill_n(total, rows, 0.0f);
  std::fill_n(state.sums, rows * width, 0.0f);
  const float* from = partials + tile.partial * (width + 2);
  for (int block = tile.first_block; block < tile.last_block; ++block, from += rows * (width + 2)) {
    float kept[kRows], added[kRows];
    merge(rows, state, from, from + rows, kept, added);
    for (int r = 0; r < rows; ++r)
      for (int d = 0; d < width; d += kLanes) {
        float* at = state.sums + r * width + d;
        const floats block_sums = load(from + 2 * rows + r * width + d);
        store(fused(load(at), all(kept[r]), block_sums * added[r]), at);
      }
  }
  finish(p, tile, state);
}

// Tiles of all sequences, the ones with most work first.
std::vector<Item> tiles_of(const Problem& p, int sequences) {
  std::vector<Item> tiles;
  for (int s = 0; s < sequences; ++s) {
    const int queries = p.starts[s + 1] - p.starts[s];
    const int rows = queries * p.group, position = p.lengths[s] - queries;
    for (int row = 0; row < rows; row += kRows) {
      const int taken = std::min(kRows, rows - row);
      const int low = lowest_seen(p, position, row / p.group);
      const int end = position + (row + taken - 1) / p.group + 1;
      for (int head = 0; head < p.kv_heads; ++head)
        tiles.push_back({s, head, row, taken, low / kKeys, (end + kKeys - 1) / kKeys, -1});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const Item& a, const Item& b) {
    const auto work = [](const Item& i) { return i.rows * (i.last_block - i.first_block); };
    return work(a) > work(b);
  });
  return tiles;
}

// One item per block where tiles alone would leave threads idle.
std::vector<Item> split(std::vector<Item>& tiles, int64_t& rows) {
  std::vector<Item> items;
  for (Item& tile : tiles) {
    if (tile.last_block - tile.first_block > 1) tile.partial = rows;
    Item item = tile;
    for (int block = tile.first_block; tile.partial >= 0 && block < tile.last_block; ++block) {
      item.first_block = block;
      item.last_block = block + 1;
      item.partial = rows;
      rows += tile.rows;
      items.push_back(item);
    }
    if (tile.partial < 0) items.push_back(tile);
  }
  return items;
}

// All items of a plan, and what becomes of them.
template <class Element>
void attend_items(const Problem& p, const Plan& plan, Turns& turns, Member member, float* states) {
  static thread_local Scratch scratch;
  const auto num_items = static_cast<int64_t>(plan.items.size());
  const auto num_tiles = static_cast<int64_t>(plan.tiles.size());
  for (int64_t i; (i = turns.items.next()) < num_items;) {
    const int64_t next = i + member.of;
    const Item* then = next < num_items ? &plan.items[next] : nullptr;
    attend<Element>(p, plan.items[i], then, scratch, states);
  }
  member.wait();
  if (plan.states == 0) return;
  for (int64_t i; (i = turns.tiles.next()) < num_tiles;)
    if (plan.tiles[i].partial >= 0) combine(p, plan.tiles[i], states, scratch);
  member.wait();
}

}  // namespace
}  // namespace ridgeline
