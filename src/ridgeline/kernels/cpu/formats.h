// The weight formats that decoder_layers.cpp multiplies by. Formats are compiled into libraries of
// their own, for whoever needs one; each makes itself known here when it is loaded.

#pragma once

#include "linear_panels.h"

namespace ridgeline::linear {

// By the types of panels and x; null: not such panels or no such x.
using ShareOf = Share (*)(ScalarType panels, ScalarType x, bool portable);

// Returns whether there was room for one more.
__attribute__((visibility("default"))) bool add_format(ShareOf share_of);

// Of whichever format that is loaded has such panels and takes such an x; null: none.
Share share_of_loaded(ScalarType panels, ScalarType x);

// The format that multiplies by x rounded to bytes, for an x of one type.
struct RoundedFormat {
  // Rounds rows begin … end of x [rows, depth]; `fixed`: their step, 0: each row has its own.
  void (*round)(const void* x, int64_t depth, float fixed, const Levels& to, int64_t begin,
                int64_t end);
  Share share;  // of a job with levels and offsets
};
using RoundedOf = RoundedFormat (*)(ScalarType x);

__attribute__((visibility("default"))) bool add_rounded_format(RoundedOf format_of);

// Nulls: its library is not loaded, or does not multiply bytes on this CPU.
RoundedFormat rounded_format_of_loaded(ScalarType x);

}  // namespace ridgeline::linear
