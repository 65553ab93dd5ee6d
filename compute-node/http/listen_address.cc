#include "compute-node/http/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "compute-node/http/http_types.h"

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

bool IsLoopback(const std::string& host, bool is_v6) {
  // What C takes for the end of a text is no part of an address.
  if (host.find('\0') != std::string::npos) return false;
  in6_addr v6{};
  if (is_v6) return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
  in_addr v4{};
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
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
  if (IsLoopback(out.host, out.is_v6)) return out;
  return InvalidArgument(
      "'{}' is not loopback: the HTTP endpoint has no encryption and no users, so only this "
      "machine may reach it; write 127.0.0.1:{}, [::1]:{} or localhost:{}, and put an SSH tunnel "
      "or a proxy in front of it for others",
      text, *port, *port, *port);
}

bool IsLoopbackHost(std::string_view header) {
  const std::optional<HostAndPort> parts = Split(header);
  if (!parts.has_value()) return false;
  if (!parts->port.empty() && !ParsePort(parts->port).has_value()) return false;
  const bool is_name = !parts->bracketed && EqualsIgnoreCase(parts->host, "localhost");
  return is_name || IsLoopback(parts->host, parts->bracketed);
}

}  // namespace cairn::compute
