// A request and its reply, apart from how they are read and written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/match.h>

#include "compute-node/service/memory_budget.h"

namespace cairn::compute {

inline bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase({a.data(), a.size()}, {b.data(), b.size()});
}

struct HttpRequest {
  std::string method;
  std::string path;  // decoded, without the query
  // In the order in which they came.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // Of the body, and of what the handler makes of it.
  MemoryClaim memory;

  // The first one's value; empty: there is none. Upper and lower case of `name` are the same.
  std::string_view Header(std::string_view name) const {
    for (const auto& [each, value] : headers) {
      if (EqualsIgnoreCase(each, name)) return value;
    }
    return {};
  }
  std::int64_t HeaderCount(std::string_view name) const {
    return std::count_if(headers.begin(), headers.end(), [name](const auto& header) {
      return EqualsIgnoreCase(header.first, name);
    });
  }
};

// Whether the client is still there. Cheap; any time in Answer or a reply's stream.
using HttpConnected = std::function<bool()>;
// False: it cannot be written, the client is gone or does not read.
using HttpWrite = std::function<bool(std::string_view piece)>;

struct HttpReply {
  int status = 200;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Instead of a body, a stream of server-sent events: called once, on the connection's thread,
  // writes them as they come. False: it could not be written to its end.
  std::function<bool(const HttpWrite&, const HttpConnected&)> stream;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Asked before the body is read. A reply with status 200: go on.
  virtual HttpReply Admit(const HttpRequest& request) = 0;
  // May take the body away, and give its memory back.
  virtual HttpReply Answer(HttpRequest& request, const HttpConnected& connected) = 0;
};

}  // namespace cairn::compute
