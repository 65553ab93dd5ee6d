// What a daemon tells about itself: constant after its start. A value.
#pragma once

#include <cstdint>
#include <string>

namespace cairn::kv {

inline constexpr std::int64_t kBootTokenBytes = 16;
inline constexpr std::int32_t kProtocolVersion = 1;

struct NodeIdentity {
  std::string boot_token;  // kBootTokenBytes random bytes, new at every start
  std::string store_id;    // 16 bytes, as in the superblock
  std::string io_engine;   // the device's name
};

}  // namespace cairn::kv
