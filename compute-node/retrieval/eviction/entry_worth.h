// EntryWorth is what the entries of one KV head are worth to it, as the attention weights of its
// tokens say: what a policy of constant memory ranks them by when some have to go.
//
// Positions are below 2^31.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compute-node/retrieval/weight_observer.h"

namespace cairn::compute {

// The tokens whose weights decide: as many as published (Ghadia et al., "Dialogue Without Limits:
// Constant-Sized KV Caches for Extended Responses in LLMs", 2025, section 5: 30 to 32).
inline constexpr std::int64_t kProfileTokens = 32;

struct WeighedEntry {
  std::int32_t position = 0;
  float weight = 0;
};

class EntryWorth {
 public:
  virtual ~EntryWorth() = default;

  // The weights of one token, that of a step. What was told of this position or later ones is
  // forgotten: the step is computed again.
  virtual void TakeStep(std::int64_t position, const AttendedEntries& entries) = 0;
  // Those of the last `token_count` tokens of a prompt. Answers what each of the entries is worth
  // now, in their order, which is that of positions.
  virtual std::vector<float> TakePrompt(std::int64_t first_position, std::int64_t token_count,
                                        const AttendedEntries& entries) = 0;
  // Of ascending positions, as tokens before `token_count` weighed them.
  virtual std::vector<float> Of(std::span<const std::int64_t> positions,
                                std::int64_t token_count) const = 0;
  // What is worth something, likewise, by ascending positions: also what is not retained, if it is
  // known still.
  virtual std::vector<WeighedEntry> Known(std::int64_t token_count) const = 0;
  // Of positions below `end` only `retained`, ascending, will be asked for again.
  virtual void Retain(std::span<const std::int64_t> retained, std::int64_t end) = 0;
  // Forgets what tokens from there on gave, and their entries.
  virtual void Truncate(std::int64_t token_count) = 0;
  virtual std::int64_t memory_bytes() const = 0;

  // As numbers for what a checkpoint stores, and the reverse; false: they are none of these.
  virtual void Save(std::vector<std::int64_t>& numbers) const = 0;
  virtual bool Restore(std::span<const std::int64_t> numbers) = 0;
  // How many numbers those are at most, if `entry_count` entries are retained or in the window.
  virtual std::int64_t NumbersMax(std::int64_t entry_count) const = 0;
};

// One number of a stored state, and the reverse; false: it is none.
std::int64_t PackWeighed(const WeighedEntry& entry);
bool UnpackWeighed(std::int64_t number, WeighedEntry& entry);

// The positions of all entries that a pass attended, ascending.
std::vector<std::int64_t> PositionsOf(const AttendedEntries& entries, std::int64_t token_count);
// Weights that are not finite, as scores may make them, and those below 0 count as none.
float CleanWeight(float weight);
// For each entry the sum of what the tokens gave it.
std::vector<float> ColumnSums(const AttendedEntries& entries, std::int64_t token_count);

// Entries before and behind one whose weights count for it too, where they are pooled.
inline constexpr std::int64_t kPooledNeighbours = 3;
// Each weight becomes the mean of itself and those.
std::vector<float> Pooled(std::span<const float> weights);

// Weights by ascending position.
class WeightTable {
 public:
  float Of(std::int64_t position) const;
  // REQUIRES: ascending positions, as many as weights.
  void Add(std::span<const std::int64_t> positions, std::span<const float> weights);
  void Retain(std::span<const std::int64_t> retained, std::int64_t end);
  void Truncate(std::int64_t token_count);
  const std::vector<WeighedEntry>& entries() const { return entries_; }
  // False: positions do not ascend, or a weight is no finite one.
  bool Restore(std::span<const std::int64_t> numbers);
  void Clear() { entries_.clear(); }

 private:
  std::vector<WeighedEntry> entries_;
};

// Tokens of each pass of a prompt whose weights are summed: to weigh all of them would take as much
// memory as the whole matrix of weights.
inline constexpr std::int64_t kAccumulatedPromptTokens = 64;

// An entry is worth the sum of all weights that it got while it was retained (Zhang et al., "H2O:
// Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", 2023). Of a
// prompt the last tokens of each pass are looked at instead of all.
class AccumulatedWorth : public EntryWorth {
 public:
  void TakeStep(std::int64_t position, const AttendedEntries& entries) override;
  std::vector<float> TakePrompt(std::int64_t first_position, std::int64_t token_count,
                                const AttendedEntries& entries) override;
  std::vector<float> Of(std::span<const std::int64_t> positions,
                        std::int64_t token_count) const override;
  std::vector<WeighedEntry> Known(std::int64_t token_count) const override;
  void Retain(std::span<const std::int64_t> retained, std::int64_t end) override;
  void Truncate(std::int64_t token_count) override;
  std::int64_t memory_bytes() const override;
  void Save(std::vector<std::int64_t>& numbers) const override;
  bool Restore(std::span<const std::int64_t> numbers) override;
  std::int64_t NumbersMax(std::int64_t entry_count) const override { return 2 + 2 * entry_count; }

 private:
  // The sums, with what the newest token gave if it is before `token_count`.
  WeightTable SumsBefore(std::int64_t token_count) const;

  WeightTable sums_;
  // What the newest step gave: its token may be computed again.
  std::int64_t newest_ = -1;
  std::vector<std::int64_t> newest_positions_;
  std::vector<float> newest_weights_;
};

// A prompt's entry is worth what the prompt's last tokens gave it and its neighbours; one that was
// decoded is worth more than any of them, and the newer the more (Li et al., "SnapKV: LLM Knows
// What You are Looking for Before Generation", 2024, which has no bound for those).
class VotedWorth : public EntryWorth {
 public:
  void TakeStep(std::int64_t position, const AttendedEntries& entries) override;
  std::vector<float> TakePrompt(std::int64_t first_position, std::int64_t token_count,
                                const AttendedEntries& entries) override;
  std::vector<float> Of(std::span<const std::int64_t> positions,
                        std::int64_t token_count) const override;
  std::vector<WeighedEntry> Known(std::int64_t token_count) const override;
  void Retain(std::span<const std::int64_t> retained, std::int64_t end) override;
  void Truncate(std::int64_t token_count) override;
  std::int64_t memory_bytes() const override;
  void Save(std::vector<std::int64_t>& numbers) const override;
  bool Restore(std::span<const std::int64_t> numbers) override;
  std::int64_t NumbersMax(std::int64_t entry_count) const override { return 1 + entry_count; }

 private:
  std::int64_t prompt_end_ = 0;
  WeightTable votes_;
};

}  // namespace cairn::compute
