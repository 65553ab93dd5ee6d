// What whoever debugs a store may ask of an engine at work, and its answers: what is in memory,
// which no row shows yet. An answer is of one moment between two steps of the engine.
//
// Threading:  values.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "common/kv/messages.h"
#include "common/kv/positions.h"
#include "kv-node/layout/part.h"

namespace cairn::kv {

// How far an attached session is.
struct ProgressQuestion {};
struct ProgressAnswer {
  Epoch epoch;
  OpSeq applied;                   // the last changing operation
  std::int64_t queued_count = 0;   // operations that came and are not done
  std::int64_t pending_bytes = 0;  // entries that are not on flash yet
  std::int64_t row_bytes = 0;      // memory of its rows, and of what is known of their places
  bool has_channel = false;
};

// Where the entries of one of its clusters lie.
struct ClusterQuestion {
  std::int32_t layer = 0;
  ClusterRef cluster;
};
struct PartPlace {
  ExtentKind kind = ExtentKind::kPool;
  PageIndex first_page;         // of its extent
  std::int64_t page_count = 0;  // of its extent
  Positions positions;
  bool of_open_segment = false;
};
struct ClusterAnswer {
  std::vector<PartPlace> parts;    // by their first position
  std::int64_t pending_count = 0;  // entries in memory only, which are the last ones
};

using InspectionQuestion = std::variant<ProgressQuestion, ClusterQuestion>;
// Of the same index.
using InspectionAnswer = std::variant<ProgressAnswer, ClusterAnswer>;

}  // namespace cairn::kv
