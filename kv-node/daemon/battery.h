// Whether the system runs on a battery at times: what need not be written is then not written.
#pragma once

#include <string>

namespace cairn::kv {

inline constexpr const char* kPowerSupplyDir = "/sys/class/power_supply";

// Whether one of the supplies that Linux lists in `power_supply_dir` is a battery of the system
// itself, not of a mouse. False where there is no such folder.
bool HasBattery(const std::string& power_supply_dir);

}  // namespace cairn::kv
