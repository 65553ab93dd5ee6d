// Small pieces of output for people and programs. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::cli {

// A JSON string with its quotes, in which a terminal finds no control characters. Bytes that are
// not UTF-8 cannot occur in what the daemon sends.
std::string JsonString(std::string_view text);

// "3.2 MiB".
std::string HumanBytes(std::int64_t bytes);

// "2026-01-31 17:05:12", local time.
std::string LocalTime(std::chrono::system_clock::time_point time);

}  // namespace cairn::cli
