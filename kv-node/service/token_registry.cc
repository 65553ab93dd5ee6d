#include "kv-node/service/token_registry.h"

#include "common/base/random_bytes.h"

namespace cairn::kv {
namespace {

// Takes the same time wherever the strings differ.
bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

absl::StatusOr<std::string> TokenRegistry::TokenOf(AppId app) {
  MutexLock lock(mutex_);
  const auto known = token_of_app_.find(app);
  if (known != token_of_app_.end()) return known->second;
  if (static_cast<std::int64_t>(token_of_app_.size()) >= kAppCountMax) {
    return ResourceExhausted("there are {} apps already, no more are accepted", kAppCountMax);
  }
  std::string token = ToHex(RandomBytes(kTokenRandomBytes));
  token_of_app_.emplace(app, token);
  return token;
}

absl::StatusOr<AppId> TokenRegistry::AppOf(std::string_view token) const {
  MutexLock lock(mutex_);
  for (const auto& [app, known] : token_of_app_) {
    if (EqualInConstantTime(known, token)) return app;
  }
  return Unauthenticated(
      "the {} of the call is not one of this daemon's: get one from its handshake socket, again "
      "after every restart",
      kTokenMetadataKey);
}

}  // namespace cairn::kv
