// PromptSeals: where a conversation's segments end. A fork that begins at one of them goes on, bit
// for bit, as the conversation did; one that begins between them, in the middle of clusters, may
// not. Stored with the policy's state, for conversations that clients begin again and again.
//
// Limits:     kPromptSealsMax; whoever adds looks first.
// Threading:  a plain value.
// Invariants: ascending, above 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::compute {

inline constexpr std::int64_t kPromptSealsMax = 4096;

class PromptSeals {
 public:
  // The tokens that are before each.
  const std::vector<std::int64_t>& token_counts() const { return token_counts_; }
  bool empty() const { return token_counts_.empty(); }
  bool Has(std::int64_t token_count) const;
  // How many are at most at `token_count`.
  std::int64_t CountTo(std::int64_t token_count) const;
  void Add(std::int64_t token_count);
  // `token_count` is one of them, and what is before it was computed as one prompt from nothing.
  void AddFresh(std::int64_t token_count);
  // Whether the conversation is at `token_count` as it would be if the tokens before were a prompt
  // that is computed now.
  bool IsFreshAt(std::int64_t token_count) const;
  // Those of a fork at `token_count`.
  PromptSeals CutAt(std::int64_t token_count) const;

  // As bytes: how many (32 bits), which of them was computed as one prompt from nothing or 0, and
  // each (64 bits), in little-endian order.
  std::string Pack() const;
  // Takes them off the beginning of `in`; nullopt if that is not what Pack writes.
  static std::optional<PromptSeals> Unpack(std::string_view& in);

  friend bool operator==(const PromptSeals&, const PromptSeals&) = default;

 private:
  std::vector<std::int64_t> token_counts_;
  std::int64_t fresh_ = 0;  // 0: none
};

}  // namespace cairn::compute
