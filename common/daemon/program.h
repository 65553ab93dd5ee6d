// What the main programs of the daemons share: how they begin, what they say when they cannot, and
// how they end.
//
// Threading:  main's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"
#include "common/daemon/paths.h"
#include "common/daemon/signals.h"

namespace cairn {

// Behind the program's name.
using Arguments = std::span<const char* const>;

// What a command line asks for.
using Action = std::function<absl::Status()>;

// Sets up the process, reads the command line and the configuration, and does what they ask for.
// Returns the exit code: 0; 2 when `read` refuses them; 1 when the action fails. If it is not 0 the
// last line on stderr is "NAME cannot start: " with the reason.
int RunProgram(std::string_view name, int argc, const char* const* argv,
               absl::StatusOr<Action> (*read)(Arguments arguments));

// Settings of malloc for a process that moves buffers of 64 KiB to some MiB all the time.
struct MemoryTuning {
  // Blocks from this size on are mapped one by one, and given back when they are freed.
  std::int32_t mmap_threshold_bytes = 32 << 10;
  // Freed memory that the heap keeps at its end.
  std::int32_t trim_threshold_bytes = 256 << 10;
};
// Call before threads start.
void TuneMemory(const MemoryTuning& tuning);

// Begins to log as the keys `log_level` and `log_path` say, and names on stderr the file that it
// logs to. If stderr is a terminal, it shows warnings and errors of the start, and that the daemon
// is ready. A file that nobody asked for and that cannot be written is no reason not to start.
absl::Status StartLogging(const std::string& name, const std::string& log_level,
                          std::string_view log_path, const Environment& environment);

// To standard output.
absl::Status PrintText(const std::string& text);
inline Action Print(std::string text) {
  return [text = std::move(text)] { return PrintText(text); };
}
// To standard error, whether anybody reads it or not.
void PrintError(const std::string& text);
// Tells whoever looks at the start on a terminal; a log there is told as ever, and not by this.
void ShowStart(const std::string& text);

// Tells the log and systemd that the daemon is ready, waits for a signal, tells them so, and stops
// the daemon. `description` is key=value pairs.
void ServeUntilSignal(StopSignals& signals, std::string_view description,
                      const std::function<void()>& stop);

}  // namespace cairn
