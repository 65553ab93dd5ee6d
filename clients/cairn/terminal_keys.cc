#include "clients/cairn/terminal_keys.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/utf8.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr char32_t kReplacement = 0xfffd;

// Terminals send a carriage return for each line end of a paste.
std::string WithPlainLineEnds(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else if (i + 1 == text.size() || text[i + 1] != '\n') {
      out += '\n';
    }
  }
  return out;
}

}  // namespace

TerminalKeys::TerminalKeys(int fd, std::function<bool()> on_wake)
    : input_(fd, std::move(on_wake)) {}

bool TerminalKeys::Fill() {
  bytes_.erase(0, start_);
  start_ = 0;
  return input_.Read(bytes_) == InputBytes::Got::kBytes;
}

std::optional<char32_t> TerminalKeys::Next() {
  while (start_ == bytes_.size() || IsUtf8Prefix(std::string_view(bytes_).substr(start_))) {
    if (!Fill()) return std::nullopt;
  }
  const std::string_view rest = std::string_view(bytes_).substr(start_);
  const std::size_t size = Utf8CharacterBytes(rest);
  start_ += std::max<std::size_t>(size, 1);
  return size == 0 ? kReplacement : static_cast<char32_t>(Utf8CodePoint(rest.substr(0, size)));
}

std::optional<std::string> TerminalKeys::RestOfPaste(std::size_t bytes_max) {
  std::string text;
  for (;;) {
    const std::string_view rest = std::string_view(bytes_).substr(start_);
    const std::size_t end = rest.find(kPasteEnd);
    // The mark may come in two pieces.
    const std::size_t taken =
        end != std::string_view::npos ? end : rest.size() - std::min(rest.size(), kPasteEnd.size());
    if (text.size() <= bytes_max) text += rest.substr(0, taken);
    start_ += taken;
    if (end != std::string_view::npos) {
      start_ += kPasteEnd.size();
      text.resize(std::min(text.size(), bytes_max));
      return WithPlainLineEnds(text);
    }
    if (!Fill()) return std::nullopt;
  }
}

}  // namespace cairn::cli
