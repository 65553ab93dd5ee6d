// What policies attended, as lines of a file: one of JSON for each policy, measured step, layer and
// KV head. docs/policy-eval.md has the fields.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cairn::eval {

// Numbers of the model's, which a trace may have some of.
struct HeadName {
  std::int64_t layer = 0;
  std::int64_t kv_head = 0;
};

struct Selection {
  std::string_view policy;
  std::int64_t position = 0;  // of the step
  HeadName head;
  std::span<const std::int64_t> attended{};  // positions, ascending, each once
};

// With its line end.
std::string SelectionLine(const Selection& selection);

}  // namespace cairn::eval
