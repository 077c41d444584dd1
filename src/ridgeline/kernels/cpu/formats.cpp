// The list of weight formats that are loaded; see formats.h.
#include "formats.h"

#include <atomic>

namespace ridgeline::linear {
namespace {

// Read by threads that compute while another one loads a library.
std::atomic<ShareOf> formats[8];

}  // namespace

bool add_format(ShareOf share_of) {
  for (auto& place : formats) {
    ShareOf empty = nullptr;
    if (place.compare_exchange_strong(empty, share_of)) return true;
  }
  return false;
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
