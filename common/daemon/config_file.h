// Configuration files of the daemons: one protobuf message in text format, strict: an unknown key,
// a wrong type or a key given twice is an error that names the line.
//
// Threading:  pure functions on the file system.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <google/protobuf/message.h>

#include "common/base/status.h"

namespace cairn {

inline constexpr std::int64_t kConfigBytesMax = std::int64_t{1} << 20;

// Where a file gave its keys: "PATH:LINE" by key.
using ConfigPlaces = std::map<std::string, std::string, std::less<>>;

// Puts the file's keys into `config`, which holds the defaults (fields are `optional`, so that a
// zero is a value too), and where they were into `places`. NOT_FOUND no such file; INVALID_ARGUMENT
// "PATH:LINE:COLUMN: what".
absl::Status ReadConfigFile(const std::string& path, google::protobuf::Message& config,
                            ConfigPlaces& places);

// A flag that was given takes the place of a key, which holds a string.
void OverrideKey(std::string_view key, const std::optional<std::string>& flag,
                 google::protobuf::Message& config, ConfigPlaces& places);

// An error that begins with the name of a key, with the place where the file gave that key in front
// of it; any other status as it is.
absl::Status AtItsPlace(const absl::Status& status, const ConfigPlaces& places);

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
