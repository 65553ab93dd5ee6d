#include "compute-node/session/tuning.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace cairn::compute {

SessionOptions TunedEntry::On(SessionOptions options) const {
  options.policy = policy.On(options.policy);
  options.small_key_bits = small_key_bits;
  return options;
}

Tuning::Tuning(std::vector<TunedEntry> entries) : entries_(std::move(entries)) {
  CAIRN_CHECK(!entries_.empty());
  std::sort(entries_.begin(), entries_.end(), [](const TunedEntry& a, const TunedEntry& b) {
    return a.context_tokens < b.context_tokens;
  });
}

const TunedEntry& Tuning::For(std::int64_t token_count) const {
  const auto longer = std::lower_bound(
      entries_.begin(), entries_.end(), token_count,
      [](const TunedEntry& entry, std::int64_t count) { return entry.context_tokens < count; });
  if (longer == entries_.begin()) return *longer;
  const auto shorter = longer - 1;
  if (longer == entries_.end()) return *shorter;
  const bool is_nearer =
      longer->context_tokens - token_count <= token_count - shorter->context_tokens;
  return is_nearer ? *longer : *shorter;
}

}  // namespace cairn::compute
