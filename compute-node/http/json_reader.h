// Reads JSON from outside: bounded, strict, and with errors that name the field.
//
// Threading:  pure functions.
// Errors:     INVALID_ARGUMENT, as FieldError for a field of the wrong type or range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "compute-node/http/json.h"

namespace cairn::compute {

// Of values in each other. The parser needs no stack for them, but no request has so many.
inline constexpr int kJsonDepthMax = 32;
// Values in all: each takes some tens of bytes, so a body of small ones takes this much more.
inline constexpr std::int64_t kJsonValuesMax = std::int64_t{1} << 21;

// One object and nothing behind it.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);

// The field, or nullptr if it is not there or null.
const Json* FindField(const Json& object, const char* name);

absl::StatusOr<std::optional<bool>> ReadBool(const Json& object, const char* name);
// `max` and `min` are inclusive.
absl::StatusOr<std::optional<double>> ReadNumber(const Json& object, const char* name, double min,
                                                 double max);
absl::StatusOr<std::optional<std::int64_t>> ReadInteger(const Json& object, const char* name,
                                                        std::int64_t min, std::int64_t max);

}  // namespace cairn::compute
