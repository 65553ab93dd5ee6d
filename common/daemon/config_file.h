// Configuration files of the daemons: one protobuf message in text format, strict: an unknown key,
// a wrong type or a key given twice is an error that names the line.
//
// Threading:  pure functions on the file system.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <google/protobuf/message.h>

#include "common/base/status.h"

namespace cairn {

inline constexpr std::int64_t kConfigBytesMax = std::int64_t{1} << 20;

// Puts the file's keys into `config`, which holds the defaults (fields are `optional`, so that a
// zero is a value too). NOT_FOUND no such file; INVALID_ARGUMENT "PATH:LINE:COLUMN: what".
absl::Status ReadConfigFile(const std::string& path, google::protobuf::Message& config);

// What a key means, for somebody who edits the file.
struct ConfigKey {
  std::string_view name;
  std::string_view text;  // lines without "#"
  bool is_mode = false;   // a file mode: printed in octal
};

enum class Comments : std::uint8_t { kNo, kYes };

// The message as a file that ReadConfigFile reads: what --print-config prints; with comments each
// key's text too, as --print-default-config does. REQUIRES: `keys` are the message's fields in
// their order; every field that is not repeated is set.
std::string PrintConfig(const google::protobuf::Message& config, std::span<const ConfigKey> keys,
                        Comments comments);

}  // namespace cairn
