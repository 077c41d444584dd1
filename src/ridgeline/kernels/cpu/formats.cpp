// The list of weight formats that are loaded; see formats.h.
#include "formats.h"

#include <atomic>

namespace ridgeline::linear {
namespace {

// Read by threads that compute while another one loads a library.
std::atomic<ShareOf> formats[8];
std::atomic<RoundedOf> rounded_format;

}  // namespace

bool add_format(ShareOf share_of) {
  for (auto& place : formats) {
    ShareOf empty = nullptr;
    if (place.compare_exchange_strong(empty, share_of)) return true;
  }
  return false;
}

bool add_rounded_format(RoundedOf format_of) {
  rounded_format.store(format_of);
  return true;
}

RoundedFormat rounded_format_of_loaded(ScalarType x) {
  const RoundedOf format_of = rounded_format.load();
  return format_of == nullptr ? RoundedFormat{} : format_of(x);
}

Share share_of_loaded(ScalarType panels, ScalarType x) {
  for (const auto& place : formats) {
    const ShareOf share_of = place.load();
    if (share_of == nullptr) return nullptr;
    if (const Share share = share_of(panels, x, false)) return share;
  }
  return nullptr;
}

}  // namespace ridgeline::linear
