// TokenRegistry knows which app a token of the gRPC metadata stands for. Tokens are made by the
// handshake and live as long as the daemon: an app has one, so that reconnecting clients do not add
// up.
//
// Threading:  safe from any thread.
// Limits:     kAppCountMax apps.
// Errors:     UNAUTHENTICATED no token, or one that this process did not give out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/messages.h"

namespace cairn::kv {

// The metadata key of every call.
inline constexpr char kTokenMetadataKey[] = "cairn-token";
inline constexpr std::int64_t kAppCountMax = 1024;
inline constexpr std::int64_t kTokenRandomBytes = 32;

class TokenRegistry {
 public:
  // The app's token: 64 hexadecimal digits, made at the first call.
  absl::StatusOr<std::string> TokenOf(AppId app);
  // The app that `token` was given to.
  absl::StatusOr<AppId> AppOf(std::string_view token) const;

 private:
  mutable Mutex mutex_;
  std::map<AppId, std::string> token_of_app_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
