#include "compute-node/retrieval/selection_options.h"

#include <algorithm>
#include <cmath>

namespace cairn::compute {
namespace {

constexpr std::int64_t kSelectTokensMin = 64;
constexpr std::int64_t kSelectTokensMax = std::int64_t{1} << 24;
constexpr std::int64_t kClusterTargetMax = 64;

}  // namespace

absl::Status SelectionOptions::Validate() const {
  if (!(select_percent > 0 && select_percent <= 100)) {
    return InvalidArgument("select_percent is {}: it must be above 0 and at most 100",
                           select_percent);
  }
  if (select_tokens_min < kSelectTokensMin || select_tokens_min > kSelectTokensMax) {
    return InvalidArgument("select_tokens_min is {}: it must be {} to {}", select_tokens_min,
                           kSelectTokensMin, kSelectTokensMax);
  }
  if (select_tokens_max < kSelectTokensMin || select_tokens_max > kSelectTokensMax) {
    return InvalidArgument("select_tokens_max is {}: it must be {} to {}", select_tokens_max,
                           kSelectTokensMin, kSelectTokensMax);
  }
  if (select_tokens_min > select_tokens_max) {
    return InvalidArgument(
        "select_tokens_min is {}: it must be at most select_tokens_max, which is {}",
        select_tokens_min, select_tokens_max);
  }
  if (cluster_target_entries < 1 || cluster_target_entries > kClusterTargetMax) {
    return InvalidArgument("cluster_target_entries is {}: it must be 1 to {}",
                           cluster_target_entries, kClusterTargetMax);
  }
  if (!(estimate_percent >= 0 && estimate_percent <= 100)) {
    return InvalidArgument("estimate_percent is {}: it must be 0 to 100", estimate_percent);
  }
  return absl::OkStatus();
}

std::int64_t SelectedTokens(const SelectionOptions& options, std::int64_t token_count) {
  const double share = static_cast<double>(token_count) * options.select_percent / 100;
  return std::clamp(static_cast<std::int64_t>(std::llround(share)), options.select_tokens_min,
                    options.select_tokens_max);
}

std::int64_t SparseWindowTokens(const SelectionOptions& options, std::int64_t token_count) {
  return std::clamp(SelectedTokens(options, token_count) / 4, kSparseWindowTokensMin,
                    kSparseWindowTokensMax);
}

std::int64_t HeldEntriesMax(const SelectionOptions& options, std::int64_t token_count) {
  return std::min(kHeldEntriesMax, SelectedTokens(options, token_count) / 16);
}

}  // namespace cairn::compute
