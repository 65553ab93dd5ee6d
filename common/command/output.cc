#include "common/command/output.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "common/base/printable.h"

namespace cairn::cli {
namespace {

// The errno of the first write that failed; a process has one standard output.
int& OutputError() {
  static int error = 0;
  return error;
}

}  // namespace

// Not by stdio, which may lose what a signal interrupts.
absl::Status WriteOutput(std::string_view text) {
  while (OutputError() == 0 && !text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      OutputError() = errno;
    }
  }
  return OutputStatus();
}

absl::Status OutputStatus() {
  if (OutputError() == 0) return absl::OkStatus();
  return ErrnoStatus(OutputError(), "write to standard output");
}

std::string ForTheReader(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  return terminal ? EscapeControlsInLines(text) : std::string(text);
}

std::string HumanBytes(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

bool OutputReaderIsGone() { return OutputError() == EPIPE; }

void WriteNote(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void WriteProblem(std::string_view program, std::string_view message) {
  WriteNote(fmt::format("{}: {}\n", program, EscapeControlsInLines(message)));
}

}  // namespace cairn::cli
