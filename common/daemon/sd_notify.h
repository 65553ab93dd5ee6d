// Tells systemd how the daemon is doing, if systemd started it (Type=notify): sd_notify(3), whose
// protocol is one datagram to the socket in $NOTIFY_SOCKET. Does nothing without that variable.
//
// Threading:  reads the environment: call from main's thread.
#pragma once

#include <string>

namespace cairn {

// "READY=1", "STOPPING=1", "STATUS=loading the model".
void SdNotify(const std::string& state);

}  // namespace cairn
