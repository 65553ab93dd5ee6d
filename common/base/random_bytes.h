// Random bytes that nobody can guess and that never come again: for tokens and identities.
//
// Threading:  safe from any thread.
// Blocking:   never, once the kernel has gathered its first entropy after the machine's start.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// `count` bytes, at most 256, from the kernel's random generator.
std::string RandomBytes(std::int64_t count);
// Two lower-case hexadecimal digits for each byte.
std::string ToHex(std::string_view bytes);

}  // namespace cairn
