// Checks of numbers on a command line, which tell what is no number from what is too large.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

namespace cairn::cli {

// A whole number from `min` to `max`.
CLI::Validator WholeNumber(std::int64_t min, std::int64_t max);

// Any number from `min` to `max`.
CLI::Validator Number(double min, double max);

}  // namespace cairn::cli
