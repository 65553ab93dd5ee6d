// Reads JSON from outside: bounded, strict, and with errors that name the field.
//
// Threading:  pure functions.
// Errors:     INVALID_ARGUMENT, as FieldError for a field of the wrong type or range; those of the
//             memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "compute-node/service/memory_budget.h"

namespace cairn::compute {

// What is read keeps no order, what is written does.
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Of values in each other. The parser needs no stack for them, but no request has so many.
inline constexpr int kJsonDepthMax = 32;

// What the values that are kept take beside their text, here and in what is made of them, as a
// message of a few letters, or the id of a token, shows.
inline constexpr std::int64_t kJsonObjectBytes = 768;
inline constexpr std::int64_t kJsonKeyBytes = 112;
inline constexpr std::int64_t kJsonValueBytes = 64;
// So much of that is free, as kRequestFreeBytes is.
inline constexpr std::int64_t kJsonFreeBytes = 512 << 10;

// One object and nothing behind it, without a name that is twice in it. Of its fields only those
// with one of these names are kept; the others are checked and dropped as they are read. What is
// kept grows `memory`, whose errors are answered; more of it belongs to the values than to the
// text, which was claimed with the body.
absl::StatusOr<Json> ParseJsonObject(std::string_view text, std::span<const std::string_view> names,
                                     MemoryClaim& memory);

// The field, or nullptr if it is not there or null.
const Json* FindField(const Json& object, const char* name);

absl::StatusOr<std::optional<bool>> ReadBool(const Json& object, const char* name);
// `max` and `min` are inclusive.
absl::StatusOr<std::optional<double>> ReadNumber(const Json& object, const char* name, double min,
                                                 double max);
absl::StatusOr<std::optional<std::int64_t>> ReadInteger(const Json& object, const char* name,
                                                        std::int64_t min, std::int64_t max);

}  // namespace cairn::compute
