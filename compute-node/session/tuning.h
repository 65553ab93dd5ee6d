// Tuning is what cairn-tune found for a model on a device: which policy new conversations of so
// many tokens have where their client names none (KVSwap, Appendix A.4: one solution for each batch
// and context length; the nearest where there is none).
//
// Threading:  immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compute-node/retrieval/policy_choice.h"
#include "compute-node/session/options.h"

namespace cairn::compute {

struct TunedEntry {
  std::int64_t context_tokens = 0;
  PolicyRequest policy;
  std::string small_key_bits;  // as in SessionOptions

  // What a conversation of this entry has.
  SessionOptions On(SessionOptions options) const;
};

class Tuning {
 public:
  // REQUIRES: at least one entry, each of another number of tokens.
  explicit Tuning(std::vector<TunedEntry> entries);

  // Ascending by their tokens.
  const std::vector<TunedEntry>& entries() const { return entries_; }
  // The one of so many tokens, or the nearest; of two as near the longer one.
  const TunedEntry& For(std::int64_t token_count) const;

 private:
  std::vector<TunedEntry> entries_;
};

}  // namespace cairn::compute
