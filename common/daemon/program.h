// What the main programs of the daemons share: how they begin, what they say when they cannot, and
// how they end.
//
// Threading:  main's thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/daemon/signals.h"

namespace cairn {

// Behind the program's name.
using Arguments = std::span<const char* const>;

// Sets up the process and runs the daemon. Returns the exit code: 0 when `run` returns OK; else 1,
// and the last line on stderr is "NAME cannot start: " with the reason.
int RunProgram(std::string_view name, int argc, const char* const* argv,
               absl::Status (*run)(Arguments arguments));

// To standard output.
absl::Status PrintText(const std::string& text);
// To standard error, whether anybody reads it or not.
void PrintError(const std::string& text);

// Tells the log and systemd that the daemon is ready, waits for a signal, tells them so, and stops
// the daemon. `description` is key=value pairs.
void ServeUntilSignal(StopSignals& signals, std::string_view description,
                      const std::function<void()>& stop);

}  // namespace cairn
