// What an errno means to whoever reads of it. Pure functions, defined in status.cc.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

// What the system calls it.
std::string ErrnoText(int error_number);
// What to do about it, behind a colon, where that is the same wherever it happens; else empty.
std::string_view ErrnoCure(int error_number);

}  // namespace cairn
