// Where daemons and clients meet when nobody says otherwise.
// Threading:  reads the environment: call before threads start.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

// $XDG_RUNTIME_DIR/cairn/NAME; without that variable /run/cairn/NAME for root, else NAME in the
// state directory ($XDG_STATE_HOME/cairn, else ~/.local/state/cairn).
std::string DefaultSocketPath(std::string_view name);

}  // namespace cairn
