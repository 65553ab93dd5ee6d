// Named threads with signals blocked: only main handles signals.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace cairn {

// Starts a thread that blocks all signals and carries `name` (at most 15 characters; longer is a
// programmer error).
std::thread StartThread(const std::string& name, std::function<void()> body);

}  // namespace cairn
