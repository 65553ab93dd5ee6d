// MeasureKeyRuns runs a text with full attention and says how many of its keys a run-length code
// would save, and what the code would cost ("Run-Length Encoding for KV Caches"): by layer, and how
// far the next token's distributions move where one key stands for a run.
//
// Keys are compared before rotary embedding: rotated ones differ by their position. A head whose
// keys take no less with the code keeps them plain: the gate.
//
// Threading:  one call at a time for a model.
// Errors:     INVALID_ARGUMENT an option out of range, too few tokens, or more than the model's
//             context; those of Model::Forward.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "compute-node/eval/divergence.h"
#include "compute-node/eval/key_runs.h"
#include "compute-node/model/forward/forward.h"

namespace cairn::eval {

struct KeyRunsOptions {
  std::vector<double> tolerances;  // each positive
  KvFormat kv_format = KvFormat::kF16;
  std::int64_t cluster_entries = 8;  // on average; at most 8
};

// Where keys that are alike are looked for.
enum class RunPlace {
  kOrder,       // among neighbours
  kClusters,    // in clusters of rotated keys, which are what policies make
  kKeyClusters  // in clusters of keys before rotation, where those which are alike meet
};
inline constexpr std::array kRunPlaces = {RunPlace::kOrder, RunPlace::kClusters,
                                          RunPlace::kKeyClusters};
// As the JSON has it.
std::string_view RunPlaceName(RunPlace place);

// A way to code the keys.
struct KeyCode {
  RunPlace place = RunPlace::kOrder;
  double tolerance = 0;
};

// Of one layer, all KV heads together.
struct LayerRuns {
  KeyRuns runs;
  std::int64_t bytes = 0;  // behind the gate
};

struct KeyCodeResult {
  KeyCode code;
  std::vector<LayerRuns> layers;
  Divergence divergence;
};

struct KeyRunsResult {
  // The mean of the heads' MedianStep, by layer.
  std::vector<double> median_steps;
  std::int64_t layer_bytes = 0;      // of the keys of a layer, plain
  std::vector<KeyCodeResult> codes;  // by place, then as the tolerances
};

using KeyRunsProgress = std::function<void(std::int64_t done_count, std::int64_t all_count)>;

absl::StatusOr<KeyRunsResult> MeasureKeyRuns(compute::Model& model,
                                             std::span<const std::int32_t> tokens,
                                             const KeyRunsOptions& options,
                                             const KeyRunsProgress& progress);

// A line for each code.
std::string Table(const KeyRunsResult& result);
nlohmann::ordered_json ToJson(const KeyRunsResult& result);

}  // namespace cairn::eval
