#include "common/command/number_check.h"

#include <charconv>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace cairn::cli {
namespace {

template <typename T>
CLI::Validator Check(T min, T max, std::string_view kind) {
  const auto check = [min, max, kind](const std::string& text) -> std::string {
    T value{};
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) {
      return fmt::format("{} is no {}: give one from {} to {}", text.empty() ? "''" : text, kind,
                         min, max);
    }
    if (parsed.ec == std::errc() && value >= min && value <= max) return "";
    return fmt::format("{} is out of range: give {} to {}", text, min, max);
  };
  return {check, fmt::format("{} to {}", min, max), "number"};
}

}  // namespace

CLI::Validator WholeNumber(std::int64_t min, std::int64_t max) {
  return Check(min, max, "whole number");
}

CLI::Validator Number(double min, double max) { return Check(min, max, "number"); }

}  // namespace cairn::cli
