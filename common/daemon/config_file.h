// Configuration files of the daemons: one protobuf message in text format, strict: an unknown key,
// a wrong type or a key given twice is an error that names the line. A field that is a message is a
// group of keys in braces; no two keys have one name, whatever their group.
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

// All of a file of at most kConfigBytesMax. NOT_FOUND no such file; INVALID_ARGUMENT a longer one.
absl::StatusOr<std::string> ReadConfigText(const std::string& path);

// Puts the file's keys into `config`, which holds the defaults (fields are `optional`, so that a
// zero is a value too), and where they were into `places`. NOT_FOUND no such file; INVALID_ARGUMENT
// "PATH:LINE:COLUMN: what".
absl::Status ReadConfigFile(const std::string& path, google::protobuf::Message& config,
                            ConfigPlaces& places);

// A flag that was given takes the place of a key that holds a string and is in no group.
void OverrideKey(std::string_view key, const std::optional<std::string>& flag,
                 google::protobuf::Message& config, ConfigPlaces& places);

// An error that begins with the name of a key, with the place where the file gave that key in front
// of it; any other status as it is.
absl::Status AtItsPlace(const absl::Status& status, const ConfigPlaces& places);

// The message as a file that ReadConfigFile reads: what --print-config prints. REQUIRES: every
// field that is not repeated is set.
std::string PrintConfig(const google::protobuf::Message& config);

// That with what each key means in front of it, as --print-default-config does: the comments of
// `descriptor_set`, a FileDescriptorSet of the message's file with its comments.
std::string PrintConfigWithComments(const google::protobuf::Message& config,
                                    std::span<const unsigned char> descriptor_set);

}  // namespace cairn
