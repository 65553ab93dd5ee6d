// JSON that programs print, where a library for it would be too much. Pure function.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

// A JSON string with its quotes, which a terminal can show: control characters are escaped. Bytes
// that are no UTF-8 become U+FFFD.
std::string JsonString(std::string_view text);

}  // namespace cairn
