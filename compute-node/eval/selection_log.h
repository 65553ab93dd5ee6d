// SelectionLog writes what policies attended to a file: a line of JSON for each policy, measured
// step, layer and KV head. docs/policy-eval.md has the fields.
//
// Threading:  one thread at a time.
// Errors:     those of OutputFile.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "compute-node/eval/output_file.h"

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

class SelectionLog {
 public:
  explicit SelectionLog(const std::string& path) : file_(path) {}

  absl::Status Open() { return file_.Open(); }
  void Add(const Selection& selection) { file_.Write(SelectionLine(selection)); }
  // Only now the file is there; also what failed before.
  absl::Status Commit() { return file_.Commit(); }

 private:
  OutputFile file_;
};

}  // namespace cairn::eval
