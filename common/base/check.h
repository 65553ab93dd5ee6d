// CAIRN_CHECK ends the process when the program itself is wrong, in every build. What the world can
// get wrong (files, devices, requests) is an absl::Status instead. CAIRN_DCHECK is for checks that
// cost more than O(1): debug builds and AddressSanitizer's, which defines CAIRN_DEEP_CHECKS.
#pragma once

#include <string>

#include <fmt/format.h>

namespace cairn::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const std::string& detail);

}  // namespace cairn::internal

#define CAIRN_CHECK(condition)                                            \
  do {                                                                    \
    if (!(condition)) {                                                   \
      ::cairn::internal::CheckFailed(__FILE__, __LINE__, #condition, ""); \
    }                                                                     \
  } while (false)

// CAIRN_CHECK_OP(==, a, b) prints both values.
#define CAIRN_CHECK_OP(op, a, b)                                                                  \
  do {                                                                                            \
    const auto& cairn_check_a = (a);                                                              \
    const auto& cairn_check_b = (b);                                                              \
    if (!(cairn_check_a op cairn_check_b)) {                                                      \
      ::cairn::internal::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b,                       \
                                     fmt::format("{} against {}", cairn_check_a, cairn_check_b)); \
    }                                                                                             \
  } while (false)

#define CAIRN_CHECK_EQ(a, b) CAIRN_CHECK_OP(==, a, b)
#define CAIRN_CHECK_LT(a, b) CAIRN_CHECK_OP(<, a, b)
#define CAIRN_CHECK_LE(a, b) CAIRN_CHECK_OP(<=, a, b)
#define CAIRN_CHECK_GE(a, b) CAIRN_CHECK_OP(>=, a, b)

#if defined(NDEBUG) && !defined(CAIRN_DEEP_CHECKS)
#define CAIRN_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define CAIRN_DCHECK(condition) CAIRN_CHECK(condition)
#endif
