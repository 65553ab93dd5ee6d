// StreamingPolicy and RandomPolicy choose without looking at queries: what a policy that looks must
// beat.
#pragma once

#include <cstdint>
#include <vector>

#include "compute-node/retrieval/baselines/page_policy.h"

namespace cairn::compute {

// The sinks and the newest tokens (Xiao et al., "Efficient Streaming Language Models with Attention
// Sinks", 2023). The others stay on flash, where a prompt reads them.
class StreamingPolicy : public PagePolicy {
 public:
  explicit StreamingPolicy(const PolicyOptions& options)
      : PagePolicy({.name = "streaming"}, options) {}

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
};

// Random pages, other ones for every layer, head and step; the last of them in part.
class RandomPolicy : public PagePolicy {
 public:
  explicit RandomPolicy(const PolicyOptions& options) : PagePolicy({.name = "random"}, options) {}

 protected:
  std::vector<std::int64_t> Choose(const SelectionInput& input, std::int32_t head,
                                   std::int64_t count) const override;
};

}  // namespace cairn::compute
