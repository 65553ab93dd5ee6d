#include "compute-node/http/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace cairn::compute {
namespace {

struct HostAndPort {
  std::string host;
  std::string_view port;  // empty: none
  bool bracketed = false;
};

// "host:port", "[v6]:port", "host" or "[v6]".
std::optional<HostAndPort> Split(std::string_view text) {
  HostAndPort out;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    out.bracketed = true;
    out.host = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    out.host = text.substr(0, colon);
    text.remove_prefix(colon);
  }
  if (text.empty()) return out;
  if (!text.starts_with(':') || text.size() == 1) return std::nullopt;
  out.port = text.substr(1);
  return out;
}

std::optional<std::uint16_t> ParsePort(std::string_view text) {
  std::uint16_t port = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return port;
}

// What C takes for the end of a text is no part of an address.
bool HasZero(const std::string& host) { return host.find('\0') != std::string::npos; }

bool IsLoopbackV4(const std::string& host) {
  in_addr address{};
  return !HasZero(host) && ::inet_pton(AF_INET, host.c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24) == IN_LOOPBACKNET;
}

bool IsLoopbackV6(const std::string& host) {
  in6_addr address{};
  return !HasZero(host) && ::inet_pton(AF_INET6, host.c_str(), &address) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&address);
}

}  // namespace

std::string ListenAddress::ToText() const {
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text) {
  const std::optional<HostAndPort> parts = Split(text);
  const std::optional<std::uint16_t> port =
      parts.has_value() ? ParsePort(parts->port) : std::nullopt;
  if (!port.has_value()) {
    return InvalidArgument("'{}' is no address with a port: write it as 127.0.0.1:8080", text);
  }
  ListenAddress out{.host = parts->host, .is_v6 = parts->bracketed, .port = *port};
  if (!out.is_v6 && out.host == "localhost") out.host = "127.0.0.1";
  if (out.is_v6 ? IsLoopbackV6(out.host) : IsLoopbackV4(out.host)) return out;
  return InvalidArgument(
      "'{}' is not loopback: the HTTP endpoint has no encryption and no users, so only this "
      "machine may reach it; write 127.0.0.1:{}, [::1]:{} or localhost:{}, and put an SSH tunnel "
      "or a proxy in front of it for others",
      text, *port, *port, *port);
}

bool IsLoopbackHost(std::string_view header) {
  std::optional<HostAndPort> parts = Split(header);
  if (!parts.has_value()) return false;
  if (!parts->port.empty() && !ParsePort(parts->port).has_value()) return false;
  if (parts->bracketed) return IsLoopbackV6(parts->host);
  std::transform(parts->host.begin(), parts->host.end(), parts->host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return parts->host == "localhost" || IsLoopbackV4(parts->host);
}

}  // namespace cairn::compute
