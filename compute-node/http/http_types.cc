#include "compute-node/http/http_types.h"

#include <algorithm>

#include <absl/strings/match.h>

namespace cairn::compute {

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [each, value] : headers) {
    if (absl::EqualsIgnoreCase(each, {name.data(), name.size()})) return value;
  }
  return {};
}

int HttpRequest::HeaderCount(std::string_view name) const {
  return static_cast<int>(std::count_if(headers.begin(), headers.end(), [name](const auto& header) {
    return absl::EqualsIgnoreCase(header.first, {name.data(), name.size()});
  }));
}

}  // namespace cairn::compute
