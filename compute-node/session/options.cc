#include "compute-node/session/options.h"

#include <algorithm>

#include "compute-node/session/entries/window.h"

namespace cairn::compute {
namespace {

constexpr std::int64_t kReplayTokens = 1024;
constexpr int kSlicesInFlightMin = 2;
constexpr int kSlicesInFlightMax = 8;

absl::Status CheckRange(const char* name, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument("{} is {}: it must be {} to {}", name, value, min, max);
}

}  // namespace

absl::Status SessionOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(policy.Validate());
  CAIRN_RETURN_IF_ERROR(CheckRange("context_tokens_max", context_tokens_max, 0, kContextLengthMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("prefill_chunk_tokens", prefill_chunk_tokens, 1, kBatchTokensMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("window_tokens_max", window_tokens_max, kWindowTokensMin, kWindowTokensMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("fetch_slice_bytes", fetch_slice_bytes, std::int64_t{1} << 16, kFetchBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("slices_in_flight_max", slices_in_flight_max, kSlicesInFlightMin,
                                   kSlicesInFlightMax));
  return CheckRange("dram_budget_bytes", dram_budget_bytes, std::int64_t{1} << 20,
                    std::int64_t{1} << 40);
}

// What was not stored yet lies in both daemons, and a checkpoint needs as much again for messages,
// rows and log: docs/decisions/0032-*.
std::int64_t CheckpointReplayBytes(const SessionOptions& options, const EntryLayout& layout) {
  constexpr std::int64_t kBudgetShare = 16;
  return std::min(options.dram_budget_bytes / kBudgetShare, kReplayTokens * layout.TokenBytes());
}

// Clusters leave room to grow in, and those of a prompt that came in several chunks are made anew
// before the old ones are freed.
std::int64_t PromptFlashBytes(const SessionOptions& options, const PolicyChoice& policy,
                              std::int64_t kv_bytes, std::int64_t token_count) {
  if (!policy.selects()) return kv_bytes;
  const bool anew = options.recluster_prompts && token_count > options.prefill_chunk_tokens;
  return anew ? kv_bytes * 12 / 5 : kv_bytes * 5 / 4;
}

}  // namespace cairn::compute
