// StepBudget is how many tokens a step attends: of the conversation's present length, or fixed at
// what the first prompt's length gives, as PQCache and ClusterKV fix it when they have prefilled.
// With a short prompt and a long answer a fixed budget stays small, so that both are offered.
//
// The first prompt ends with the first step whose entries leave the window.
//
// Threading:  as RetrievalPolicy: Note may be called for several layers at once, and never beside
//             another function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute-node/retrieval/policy.h"

namespace cairn::compute {

class StepBudget {
 public:
  enum class Grows : std::uint8_t { kWithContext, kInFirstPrompt };

  StepBudget(const SelectionOptions& selection, Grows grows)
      : selection_(selection), grows_(grows) {}

  // Looks at entries that leave the window.
  void Note(const LeavingEntries& leaving);
  // For a conversation of so many tokens.
  std::int64_t StepTokens(std::int64_t token_count) const;
  std::int64_t WindowTokens(std::int64_t token_count) const;

  // What a state has of it.
  static constexpr std::size_t kNumbers = 2;
  std::vector<std::int64_t> Numbers() const;
  // The reverse; false for numbers that are none of these. REQUIRES: kNumbers of them.
  [[nodiscard]] bool Restore(std::span<const std::int64_t> numbers, std::int64_t token_count);
  // For a new conversation.
  void Clear();

 private:
  const SelectionOptions selection_;
  const Grows grows_;
  std::int64_t prompt_tokens_ = 0;  // so far
  bool prompt_ended_ = false;
};

}  // namespace cairn::compute
