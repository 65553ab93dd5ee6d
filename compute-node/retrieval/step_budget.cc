#include "compute-node/retrieval/step_budget.h"

#include <algorithm>

namespace cairn::compute {

void StepBudget::Note(const LeavingEntries& leaving) {
  // The same for every layer.
  if (leaving.layer != 0 || prompt_ended_) return;
  if (leaving.of_prompt || prompt_tokens_ == 0) prompt_tokens_ = leaving.conversation_token_count;
  prompt_ended_ = !leaving.of_prompt;
}

std::int64_t StepBudget::StepTokens(std::int64_t token_count) const {
  const bool is_fixed = grows_ == Grows::kInFirstPrompt && prompt_tokens_ > 0;
  return SelectedTokens(selection_, is_fixed ? std::min(token_count, prompt_tokens_) : token_count);
}

std::int64_t StepBudget::WindowTokens(std::int64_t token_count) const {
  // While the prompt grows its end is not known.
  const bool is_fixed = grows_ == Grows::kInFirstPrompt && prompt_ended_;
  return SparseWindowTokens(selection_,
                            is_fixed ? std::min(token_count, prompt_tokens_) : token_count);
}

std::vector<std::int64_t> StepBudget::Numbers() const {
  return {prompt_tokens_, prompt_ended_ ? 1 : 0};
}

bool StepBudget::Restore(std::span<const std::int64_t> numbers, std::int64_t token_count) {
  Clear();
  const std::int64_t prompt_tokens = numbers[0];
  if (prompt_tokens < 0 || prompt_tokens > kPositionMax || numbers[1] < 0 || numbers[1] > 1) {
    return false;
  }
  // A fork from within the prompt.
  prompt_tokens_ = std::min(prompt_tokens, token_count);
  prompt_ended_ = numbers[1] == 1;
  return true;
}

void StepBudget::Clear() {
  prompt_tokens_ = 0;
  prompt_ended_ = false;
}

}  // namespace cairn::compute
