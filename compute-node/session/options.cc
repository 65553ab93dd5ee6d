#include "compute-node/session/options.h"

#include <algorithm>

#include "common/base/range.h"
#include "compute-node/kernels/key_codes.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/session/entries/window.h"

namespace cairn::compute {
absl::Status SessionOptions::Validate() const {
  CAIRN_RETURN_IF_ERROR(policy.Validate());
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("context_tokens_max", context_tokens_max, 0, kContextLengthMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("prefill_chunk_tokens", prefill_chunk_tokens, 1, kBatchTokensMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("window_tokens_max", window_tokens_max, kWindowTokensMin, kWindowTokensMax));
  CAIRN_RETURN_IF_ERROR(
      CheckBetween("fetch_slice_bytes", fetch_slice_bytes, std::int64_t{1} << 16, kFetchBytesMax));
  if (!small_key_bits.empty() && !KeyCodeShape::Parse(small_key_bits).has_value()) {
    return InvalidArgument(
        "small_key_bits is '{}': it must be a digit of 1, 2, 3, 4 or 8 for each 32 axes, at most "
        "{} "
        "digits, as in '2211'",
        small_key_bits, kCodeRunsMax);
  }
  return CheckBetween("dram_budget_bytes", dram_budget_bytes, std::int64_t{1} << 20,
                      std::int64_t{1} << 40);
}

// What was not stored yet lies in both daemons, and a checkpoint needs as much again for messages,
// rows and log: docs/decisions/0032-*.
std::int64_t CheckpointReplayBytes(const SessionOptions& options, const EntryLayout& layout) {
  constexpr std::int64_t kBudgetShare = 16;
  constexpr std::int64_t kReplayTokens = 1024;
  return std::min(options.dram_budget_bytes / kBudgetShare, kReplayTokens * layout.TokenBytes());
}

std::int64_t KeptClusterBytes(const SessionOptions& options, const EntryLayout& layout,
                              std::int64_t cluster_bytes) {
  if (!options.keep_clusters) return 0;
  const std::int64_t window_bytes = options.window_tokens_max * layout.TokenBytes();
  const std::int64_t room =
      options.dram_budget_bytes / 2 - window_bytes - cluster_bytes * layout.layer_count;
  return std::max<std::int64_t>(0, room / layout.layer_count);
}

std::int64_t MemoryTokensMax(const SessionOptions& options, std::int64_t token_memory_bytes) {
  if (token_memory_bytes == 0) return kContextLengthMax;
  return options.dram_budget_bytes / token_memory_bytes;
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
