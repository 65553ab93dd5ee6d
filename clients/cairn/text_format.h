// Small pieces of output for people and programs. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cairn::cli {

// "3.2 MiB".
std::string HumanBytes(std::int64_t bytes);

// "2026-01-31 17:05:12", local time.
std::string LocalTime(std::chrono::system_clock::time_point time);

}  // namespace cairn::cli
