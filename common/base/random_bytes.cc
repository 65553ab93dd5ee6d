#include "common/base/random_bytes.h"

#include <sys/random.h>

#include <fmt/format.h>

#include "common/base/check.h"

namespace cairn {

std::string RandomBytes(std::int64_t count) {
  // Requests up to this size are answered whole and without EINTR.
  constexpr std::int64_t kWholeBytesMax = 256;
  CAIRN_CHECK_LE(count, kWholeBytesMax);
  std::string bytes(static_cast<std::size_t>(count), '\0');
  CAIRN_CHECK_EQ(::getrandom(bytes.data(), bytes.size(), 0), static_cast<ssize_t>(count));
  return bytes;
}

std::string ToHex(std::string_view bytes) {
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace cairn
