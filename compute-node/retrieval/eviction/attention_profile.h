// AttentionProfile is what the newest tokens of a KV head looked at: an entry is worth what they
// gave it, fused over them (Ghadia et al., "Dialogue Without Limits: Constant-Sized KV Caches for
// Extended Responses in LLMs", 2025, sections 3.1.3 and 3.3; the weights of the query heads of a
// group are summed before).
//
// Of each of kProfileTokens tokens the entries with the highest weights are kept, so that a profile
// takes at most 10 KiB; what a prompt's tokens gave is fused whole once, when it ends.
//
// Threading:  as EntryWorth.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "compute-node/retrieval/eviction/entry_worth.h"

namespace cairn::compute {

// Of a token.
inline constexpr std::int64_t kProfileEntries = 32;

class AttentionProfile : public EntryWorth {
 public:
  enum class Fusion : std::uint8_t { kSum, kMax };

  // Pooled: an entry is worth the mean of what it and its neighbours got (entry_worth.h): what was
  // not looked at yet, but stands beside what was, stays too. Published without.
  enum class Pooling : bool { kNo, kYes };

  AttentionProfile(Fusion fusion, Pooling pooling) : fusion_(fusion), pooling_(pooling) {}

  void TakeStep(std::int64_t position, const AttendedEntries& entries) override;
  std::vector<float> TakePrompt(std::int64_t first_position, std::int64_t token_count,
                                const AttendedEntries& entries) override;
  std::vector<float> Of(std::span<const std::int64_t> positions,
                        std::int64_t token_count) const override;
  std::vector<WeighedEntry> Known(std::int64_t token_count) const override;
  // What goes leaves the profile with the tokens that looked at it.
  void Retain(std::span<const std::int64_t> retained, std::int64_t end) override;
  void Truncate(std::int64_t token_count) override;
  std::int64_t memory_bytes() const override;
  void Save(std::vector<std::int64_t>& numbers) const override;
  bool Restore(std::span<const std::int64_t> numbers) override;
  std::int64_t NumbersMax(std::int64_t entry_count) const override;

 private:
  struct Row {
    std::int64_t token = 0;             // its position
    std::vector<WeighedEntry> entries;  // by ascending position
  };

  void Fuse(float weight, float& worth) const;
  // What the last `row_count` tokens before `token_count` gave, by ascending position.
  std::vector<WeighedEntry> FusedRows(std::int64_t token_count, std::int64_t row_count) const;
  void AddRow(std::int64_t token, std::span<const std::int64_t> positions,
              std::span<const float> weights);

  const Fusion fusion_;
  const Pooling pooling_;
  std::deque<Row> rows_;  // of consecutive tokens, the newest last
};

}  // namespace cairn::compute
