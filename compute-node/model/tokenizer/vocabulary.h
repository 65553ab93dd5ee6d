// Vocabulary: the tokens of a GGUF file's tokenizer (tokenizer.ggml.*) with their kinds, scores and
// special ids, checked.
//
// Threading:  immutable but for MakeControl; then safe from any thread.
// Ownership:  keeps its own copy of the texts; views that it returns are valid as long as it is.
// Errors:     INVALID_ARGUMENT with the key and the numbers for arrays that are missing, too long,
//             of the wrong kind or of lengths that disagree, and for ids out of range.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

inline constexpr std::int64_t kTokenTextBytesMax = 1 << 16;

// The format's own numbers.
enum class TokenKind : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

class Vocabulary {
 public:
  static absl::StatusOr<std::unique_ptr<Vocabulary>> FromGguf(const GgufFile& file);
  ~Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::int32_t size() const { return static_cast<std::int32_t>(texts_.size()); }
  bool Contains(std::int32_t id) const { return id >= 0 && id < size(); }
  // REQUIRES: Contains(id).
  std::string_view Text(std::int32_t id) const { return texts_[static_cast<std::size_t>(id)]; }
  TokenKind Kind(std::int32_t id) const { return kinds_[static_cast<std::size_t>(id)]; }
  float Score(std::int32_t id) const { return scores_[static_cast<std::size_t>(id)]; }

  // The token with this text; the lowest id if several have it.
  std::optional<std::int32_t> Find(std::string_view text) const;

  // The user-defined token at the start of `text`, with `control` also a control or unknown token;
  // the longest if several fit. Costs as many steps as characters agree, whatever their number.
  std::optional<std::int32_t> SpecialAt(std::string_view text, bool control) const;
  // Whether SpecialAt can find anything.
  bool HasSpecial(bool control) const { return control ? !specials_.empty() : has_user_defined_; }

  // -1 where the vocabulary has none.
  std::int32_t bos_id() const { return bos_id_; }
  std::int32_t eos_id() const { return eos_id_; }
  std::int32_t unknown_id() const { return unknown_id_; }
  bool IsEndOfGeneration(std::int32_t id) const;
  const std::vector<std::int32_t>& end_ids() const { return end_ids_; }  // sorted

  // Gives tokens the kind kControl. REQUIRES: Contains all; while nobody else uses the vocabulary.
  void MakeControl(std::span<const std::int32_t> ids);

  bool has_kinds() const { return has_kinds_; }
  bool has_scores() const { return has_scores_; }

 private:
  Vocabulary() = default;
  absl::Status ReadTokens(const GgufFile& file);
  absl::Status ReadKinds(const GgufFile& file);
  absl::Status ReadScores(const GgufFile& file);
  absl::Status ReadIds(const GgufFile& file);
  void IndexSpecials();

  std::vector<char> bytes_;  // all texts, one after another
  std::vector<std::string_view> texts_;
  std::vector<TokenKind> kinds_;
  std::vector<float> scores_;
  bool has_kinds_ = false;
  bool has_scores_ = false;
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::vector<std::int32_t> specials_;  // sorted by text, then by id
  bool has_user_defined_ = false;
  std::vector<std::int32_t> end_ids_;  // sorted
  std::int32_t bos_id_ = -1;
  std::int32_t eos_id_ = -1;
  std::int32_t unknown_id_ = -1;
};

}  // namespace cairn::compute
