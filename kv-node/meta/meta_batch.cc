#include <array>

#include "common/base/check.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {
namespace {

// What a change costs beside its bytes.
constexpr std::int64_t kChangeOverheadBytes = 32;

}  // namespace

std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return prefix;
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

std::string_view FamilyName(Family family) {
  static constexpr std::array<std::string_view, kFamilyCount> kNames = {
      "apps", "sessions", "segments", "clusters",    "pools",
      "runs", "index",    "adapters", "coretrieval", "config"};
  const auto index = static_cast<std::size_t>(family);
  CAIRN_CHECK_LT(index, kNames.size());
  return kNames[index];
}

void MetaBatch::Put(Family family, std::string key, std::string value) {
  Add({Kind::kPut, family, std::move(key), std::move(value)});
}

void MetaBatch::Delete(Family family, std::string key) {
  Add({Kind::kDelete, family, std::move(key), {}});
}

void MetaBatch::DeletePrefix(Family family, std::string prefix) {
  CAIRN_CHECK(prefix.find_first_not_of('\xff') != std::string::npos);
  Add({Kind::kDeletePrefix, family, std::move(prefix), {}});
}

void MetaBatch::Add(Change change) {
  size_bytes_ += kChangeOverheadBytes + static_cast<std::int64_t>(change.key.size()) +
                 static_cast<std::int64_t>(change.value.size());
  changes_.push_back(std::move(change));
}

}  // namespace cairn::kv
