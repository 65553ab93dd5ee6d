#include "compute-node/model/tokenizer/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "compute-node/model/config.h"

namespace cairn::compute {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kKindsKey = "tokenizer.ggml.token_type";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";

// Tokens that end a turn or a text in the models that Cairn runs. Their files name only one of them
// as eos.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>",    "<|eom_id|>",      "<|im_end|>",
    "<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"};

// The id under `key`; `fallback` when the key is absent. -1 stands for none.
absl::StatusOr<std::int32_t> ReadId(const GgufFile& file, std::string_view key,
                                    std::int32_t token_count, std::int32_t fallback) {
  if (!file.Has(key)) {
    return fallback < token_count ? fallback : -1;
  }
  const std::optional<std::int64_t> id = file.FindInt(key);
  if (!id.has_value()) {
    return InvalidArgument("read tokenizer: {} is not an integer", key);
  }
  // Converters write -1 or 2^32 - 1 for "none".
  if (*id == -1 || *id == 0xffffffffLL) {
    return -1;
  }
  if (*id < 0 || *id >= token_count) {
    return InvalidArgument("read tokenizer: {} is {}, but the vocabulary has {} tokens", key, *id,
                           token_count);
  }
  return static_cast<std::int32_t>(*id);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Vocabulary>> Vocabulary::FromGguf(const GgufFile& file) {
  std::unique_ptr<Vocabulary> vocabulary(new Vocabulary);
  CAIRN_RETURN_IF_ERROR(vocabulary->ReadTokens(file));
  CAIRN_RETURN_IF_ERROR(vocabulary->ReadKinds(file));
  CAIRN_RETURN_IF_ERROR(vocabulary->ReadScores(file));
  CAIRN_RETURN_IF_ERROR(vocabulary->ReadIds(file));
  vocabulary->IndexSpecials();
  return vocabulary;
}

absl::Status Vocabulary::ReadTokens(const GgufFile& file) {
  if (!file.Has(kTokensKey)) {
    return InvalidArgument(
        "read tokenizer: the file has no {}; use a GGUF file that was converted with its tokenizer",
        kTokensKey);
  }
  const std::int64_t count = file.FindArrayCount(kTokensKey).value_or(0);
  if (file.FindArrayElementType(kTokensKey) != GgufValueType::kString || count < 1 ||
      count > kVocabSizeMax) {
    return InvalidArgument("read tokenizer: {} must be an array of 1 to {} strings, it has {}",
                           kTokensKey, kVocabSizeMax, count);
  }
  const std::vector<std::string_view> tokens =
      file.FindStringArray(kTokensKey).value_or(std::vector<std::string_view>());
  std::size_t total_bytes = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].size() > static_cast<std::size_t>(kTokenTextBytesMax)) {
      return InvalidArgument("read tokenizer: token {} has {} bytes, at most {} are allowed", i,
                             tokens[i].size(), kTokenTextBytesMax);
    }
    total_bytes += tokens[i].size();
  }
  bytes_.reserve(total_bytes);
  texts_.reserve(tokens.size());
  ids_.reserve(tokens.size());
  for (const std::string_view token : tokens) {
    const std::size_t begin = bytes_.size();
    bytes_.insert(bytes_.end(), token.begin(), token.end());
    texts_.emplace_back(bytes_.data() + begin, token.size());
    ids_.emplace(texts_.back(), static_cast<std::int32_t>(texts_.size() - 1));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadKinds(const GgufFile& file) {
  kinds_.assign(texts_.size(), TokenKind::kNormal);
  if (!file.Has(kKindsKey)) {
    return absl::OkStatus();
  }
  const auto kinds = file.FindInt32Array(kKindsKey);
  if (!kinds.has_value() || kinds->size() != texts_.size()) {
    return InvalidArgument(
        "read tokenizer: {} must hold {} integers, one for each token; it has {}", kKindsKey,
        texts_.size(), file.FindArrayCount(kKindsKey).value_or(0));
  }
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    const std::int32_t kind = (*kinds)[i];
    // 0 is "undefined", which old converters wrote for filling.
    if (kind < 0 || kind > static_cast<std::int32_t>(TokenKind::kByte)) {
      return InvalidArgument("read tokenizer: {} of token {} is {}, known are 0 to 6", kKindsKey, i,
                             kind);
    }
    kinds_[i] = kind == 0 ? TokenKind::kUnused : static_cast<TokenKind>(kind);
  }
  has_kinds_ = true;
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadScores(const GgufFile& file) {
  scores_.assign(texts_.size(), 0.0F);
  if (!file.Has(kScoresKey)) {
    return absl::OkStatus();
  }
  auto scores = file.FindFloatArray(kScoresKey);
  if (!scores.has_value() || scores->size() != texts_.size()) {
    return InvalidArgument("read tokenizer: {} must hold {} numbers, one for each token; it has {}",
                           kScoresKey, texts_.size(), file.FindArrayCount(kScoresKey).value_or(0));
  }
  for (std::size_t i = 0; i < scores->size(); ++i) {
    if (std::isnan((*scores)[i])) {
      return InvalidArgument("read tokenizer: {} of token {} is not a number", kScoresKey, i);
    }
  }
  scores_ = *std::move(scores);
  has_scores_ = true;
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadIds(const GgufFile& file) {
  // SentencePiece files may leave out what is the same in all of them.
  const bool spm = file.FindString("tokenizer.ggml.model") == "llama";
  CAIRN_ASSIGN_OR_RETURN(bos_id_,
                         ReadId(file, "tokenizer.ggml.bos_token_id", size(), spm ? 1 : -1));
  CAIRN_ASSIGN_OR_RETURN(eos_id_,
                         ReadId(file, "tokenizer.ggml.eos_token_id", size(), spm ? 2 : -1));
  CAIRN_ASSIGN_OR_RETURN(unknown_id_,
                         ReadId(file, "tokenizer.ggml.unknown_token_id", size(), spm ? 0 : -1));
  if (eos_id_ >= 0) end_ids_.push_back(eos_id_);
  for (const std::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    CAIRN_ASSIGN_OR_RETURN(const std::int32_t id, ReadId(file, key, size(), -1));
    if (id >= 0) end_ids_.push_back(id);
  }
  for (const std::string_view text : kEndTexts) {
    if (const auto id = Find(text); id.has_value()) {
      end_ids_.push_back(*id);
    }
  }
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
  return absl::OkStatus();
}

void Vocabulary::IndexSpecials() {
  specials_.clear();
  has_user_defined_ = false;
  for (std::int32_t id = 0; id < size(); ++id) {
    const bool special = Kind(id) == TokenKind::kControl || Kind(id) == TokenKind::kUserDefined ||
                         Kind(id) == TokenKind::kUnknown;
    if (special && !Text(id).empty()) {
      specials_.push_back(id);
      has_user_defined_ = has_user_defined_ || Kind(id) == TokenKind::kUserDefined;
    }
  }
  std::stable_sort(specials_.begin(), specials_.end(),
                   [this](std::int32_t a, std::int32_t b) { return Text(a) < Text(b); });
}

void Vocabulary::MakeControl(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    kinds_[static_cast<std::size_t>(id)] = TokenKind::kControl;
  }
  IndexSpecials();
}

std::optional<std::int32_t> Vocabulary::Find(std::string_view text) const {
  const auto it = ids_.find(text);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<std::int32_t> Vocabulary::SpecialAt(std::string_view text, bool control) const {
  std::optional<std::int32_t> found;
  auto begin = specials_.begin();
  auto end = specials_.end();
  // [begin, end) are the tokens that agree with `text` in `same` bytes; of them those that are no
  // longer come first.
  for (std::size_t same = 0; begin != end; ++same) {
    bool taken = false;
    for (; begin != end && Text(*begin).size() == same; ++begin) {
      if (!taken && (control || Kind(*begin) == TokenKind::kUserDefined)) {
        found = *begin;
        taken = true;
      }
    }
    if (same == text.size()) {
      break;
    }
    const auto byte = static_cast<unsigned char>(text[same]);
    const auto byte_of = [this, same](std::int32_t id) {
      return static_cast<unsigned char>(Text(id)[same]);
    };
    begin = std::partition_point(begin, end, [&](std::int32_t id) { return byte_of(id) < byte; });
    end = std::partition_point(begin, end, [&](std::int32_t id) { return byte_of(id) == byte; });
  }
  return found;
}

bool Vocabulary::IsEndOfGeneration(std::int32_t id) const {
  return std::binary_search(end_ids_.begin(), end_ids_.end(), id);
}

}  // namespace cairn::compute
