// The command line of cairn-policy-eval: a text that a model runs, or a trace that is replayed.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "compute-node/eval/policy_eval.h"
#include "compute-node/eval/trace_replay.h"

namespace cairn::eval {

struct Arguments {
  std::string model;
  std::string text;
  std::string tasks;
  std::int64_t document = 0;
  std::int64_t tokens = 0;   // 0: all
  std::string trace;         // empty: a model runs
  std::string rotary_pairs;  // empty: not said
  std::string select = "3%";
  std::string estimate = "0%";
  std::string kv_format = "f16";
  std::string json;
  std::string selections;
  std::vector<double> key_runs;  // not empty: tolerances of a run-length code, instead of policies
  int threads = 0;
  EvalOptions eval;
};

void AddOptions(CLI::App& app, Arguments& arguments);

// What CLI11 cannot say of the options by itself: behind app.parse, which throws as this does.
void CheckOptions(const CLI::App& app, const Arguments& arguments);

// Fills what options are written as text for: shares and the format; checks what is selected.
// INVALID_ARGUMENT naming the option.
absl::Status ParseValues(Arguments& arguments);

// Of a trace; behind ParseValues.
ReplayOptions ReplayOptionsOf(const Arguments& arguments);

}  // namespace cairn::eval
