// What a replay did, for people and for scripts.
#pragma once

#include <string>

#include "tests/bench/trace/replay.h"

namespace cairn::bench {

// One JSON object on one line. Numbers that say nothing (a rate of nothing) are 0.
std::string JsonReport(const ReplayResult& result);
std::string TextReport(const ReplayResult& result);

}  // namespace cairn::bench
