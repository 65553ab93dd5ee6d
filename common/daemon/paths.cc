#include "common/daemon/paths.h"

#include <unistd.h>

#include <cstdlib>

#include <fmt/format.h>

namespace cairn {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before threads start
  return value != nullptr ? value : "";
}

}  // namespace

std::string DefaultSocketPath(std::string_view name) {
  const std::string runtime = Variable("XDG_RUNTIME_DIR");
  if (!runtime.empty()) return fmt::format("{}/cairn/{}", runtime, name);
  if (::geteuid() == 0) return fmt::format("/run/cairn/{}", name);
  const std::string state = Variable("XDG_STATE_HOME");
  if (!state.empty()) return fmt::format("{}/cairn/{}", state, name);
  return fmt::format("{}/.local/state/cairn/{}", Variable("HOME"), name);
}

}  // namespace cairn
