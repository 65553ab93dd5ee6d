#include "compute-node/session/entries/prompt_seals.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace cairn::compute {

bool PromptSeals::Has(std::int64_t token_count) const {
  return std::binary_search(token_counts_.begin(), token_counts_.end(), token_count);
}

std::int64_t PromptSeals::CountTo(std::int64_t token_count) const {
  return std::upper_bound(token_counts_.begin(), token_counts_.end(), token_count) -
         token_counts_.begin();
}

void PromptSeals::Add(std::int64_t token_count) {
  CAIRN_CHECK_LT(0, token_count);
  const auto place = std::lower_bound(token_counts_.begin(), token_counts_.end(), token_count);
  if (place == token_counts_.end() || *place != token_count) {
    token_counts_.insert(place, token_count);
  }
}

void PromptSeals::AddFresh(std::int64_t token_count) {
  Add(token_count);
  fresh_ = token_count;
}

bool PromptSeals::IsFreshAt(std::int64_t token_count) const {
  return token_count == 0 || token_count == fresh_;
}

PromptSeals PromptSeals::CutAt(std::int64_t token_count) const {
  PromptSeals cut;
  cut.token_counts_.assign(token_counts_.begin(), token_counts_.begin() + CountTo(token_count));
  cut.fresh_ = fresh_ <= token_count ? fresh_ : 0;
  return cut;
}

std::string PromptSeals::Pack() const {
  std::string out;
  const auto append = [&out](auto number) {
    out.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  append(static_cast<std::uint32_t>(token_counts_.size()));
  append(fresh_);
  for (const std::int64_t token_count : token_counts_) append(token_count);
  return out;
}

std::optional<PromptSeals> PromptSeals::Unpack(std::string_view& in) {
  const auto take = [&in](auto& number) {
    if (in.size() < sizeof(number)) return false;
    std::memcpy(&number, in.data(), sizeof(number));
    in.remove_prefix(sizeof(number));
    return true;
  };
  PromptSeals seals;
  std::uint32_t count = 0;
  if (!take(count) || count > kPromptSealsMax || !take(seals.fresh_)) return std::nullopt;
  std::int64_t before = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::int64_t token_count = 0;
    if (!take(token_count) || token_count <= before) return std::nullopt;
    seals.token_counts_.push_back(token_count);
    before = token_count;
  }
  if (seals.fresh_ != 0 && !seals.Has(seals.fresh_)) return std::nullopt;
  return seals;
}

}  // namespace cairn::compute
