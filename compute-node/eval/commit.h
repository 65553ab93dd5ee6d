// The commit that this program was built from.
//
// Threading:  a pure function.
#pragma once

#include <string>

namespace cairn::eval {

// With "+" if files were changed since; "unknown" if that was outside of git.
std::string BuiltFrom();

}  // namespace cairn::eval
