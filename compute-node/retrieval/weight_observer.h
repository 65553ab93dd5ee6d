// WeightObserver is the part of a retrieval policy that learns from attention weights: which
// entries the newest tokens looked at, and how much.
//
// Threading:  one thread at a time, as the conversation that owns it; nothing else of the policy is
//             called meanwhile.
#pragma once

#include <cstdint>
#include <span>

#include "compute-node/retrieval/attended_entries.h"

namespace cairn::compute {

// Of one layer of a pass. Lives during the call.
struct WeighedLayer {
  std::int32_t layer = 0;
  // Of the weighed tokens, which are the pass's last ones.
  std::int64_t first_position = 0;
  std::int64_t token_count = 0;
  std::span<const AttendedEntries> heads{};  // by KV head
};

class WeightObserver {
 public:
  virtual ~WeightObserver() = default;

  // How many of the last tokens of a pass of so many are weighed: 0, none, to `token_count`. While
  // a layer is attended each takes 4 bytes for every entry and query head, counted as memory of
  // keys and values.
  virtual std::int64_t WeighedTokens(std::int64_t token_count) const = 0;

  // Behind the attention of each layer of such a pass, and before its entries leave the window. A
  // pass that failed and is computed again is told again: what is told of a layer and a position
  // takes the place of what was told before.
  virtual void TakeWeights(const WeighedLayer& layer) = 0;
};

}  // namespace cairn::compute
