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

}  // namespace ridgeline::linear
