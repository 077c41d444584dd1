// Attention over a KV cache in blocks, for operators that compute it: what they are given, checked,
// who computes what of it, and the call. It is compiled once, in paged_attention.cpp.

#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "team.h"
#include "tile.h"

namespace ridgeline {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Pack = void (*)(const void* const* rows, int count, int size, word* to,
                      const void* const* next);

// What the operator was given.
struct Problem {
  const char* queries;
  char* out;
  ScalarType query_type;
  int64_t token_stride, head_stride;  // of the queries, in elements
  const char *keys, *values;
  ScalarType stored_type;
  const float *key_scales, *value_scales;    // of each slot and head, or null
  const float *key_factors, *value_factors;  // of each head, or null
  const float* sinks;                        // or null
  const int32_t *starts, *lengths, *tables;
  const int64_t* seen;  // of each query, see ../paged_attention.py, or null
  int64_t table_stride;
  int heads, kv_heads, group, block, size;
  float scale, softcap;  // softcap 0: none
  int window;            // 0: all
  int first;             // keys that are seen beside the window
  int64_t row_bytes;     // of a stored key or value
  Pack pack_keys, pack_values;
  bool narrow;  // they give bf16, and so are queries and weights multiplied
};

// Of queries of a type over one layer's cache; where the queries and the output lie, and which heads
// they have, is still to be said, and their window.
Problem over_cache(ScalarType type, const Tensor& keys, const Tensor& values,
                   const std::optional<Tensor>& key_scales,
                   const std::optional<Tensor>& value_scales, const Tensor& starts,
                   const Tensor& lengths, const Tensor& tables, const std::optional<Tensor>& seen);

// Throws where a wrong block number would read foreign memory; `blocks` are in the cache, `most` in
// a row of the tables.
void check_tables(const Problem& p, int sequences, int64_t tokens, int64_t blocks, int64_t most);

// A tile of rows and the blocks of context it meets. Row r of a sequence and key head is query
// token r / group, head r % group.
struct Item {
  int sequence, kv_head, row, rows, first_block, last_block;
  int64_t partial;  // where its states go, in rows; −1: it meets all blocks and writes the output
};

// Who computes what of one problem, for a team of at most `threads`.
struct Plan {
  std::vector<Item> tiles, items;
  int64_t states;  // floats that the states of split tiles take
  int threads;
};

Plan planned(const Problem& p, int sequences, int threads);

// What members of a team take from while they work through a plan; new for each time.
struct Turns {
  Queue items, tiles;
};

// Called by every member of a team; all of it is done when any of them returns. `states` has the
// plan's.
void attend_all(const Problem& p, const Plan& plan, Turns& turns, Member member, float* states);

}  // namespace ridgeline
