// A fail point is a place where one guarantee of the code can be broken by its name, so that it is
// seen which tests notice (tests/crash/fail_points.py). Only builds for tests have them
// (CAIRN_FAIL_POINTS); in all others FailPoint is false and the compiler leaves the place out.
//
// Threading:  any thread.
#pragma once

#include <string_view>

namespace cairn {

#ifdef CAIRN_FAIL_POINTS
// Whether this process was started with CAIRN_FAIL_POINT=name in its environment.
bool FailPoint(std::string_view name);
#else
constexpr bool FailPoint(std::string_view /*name*/) { return false; }
#endif

}  // namespace cairn
