// What tests ask of an error's text.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace cairn::test {

inline bool Says(const absl::Status& status, std::string_view text) {
  return ToStd(status.message()).find(text) != std::string_view::npos;
}

}  // namespace cairn::test
