// A dynakv policy small enough for a test to look at all of it.
#pragma once

#include <memory>

#include "compute-node/retrieval/dynakv/dynakv_policy.h"
#include "compute-node/retrieval/policy_registry.h"
#include "tests/unit/retrieval/policy_world.h"

namespace cairn::compute {

inline PolicyOptions SmallOptions() {
  PolicyOptions options;
  options.layout = {.layer_count = 2, .head_count = 2, .head_dim = 16, .kv_format = KvFormat::kF16};
  options.group_size = 2;
  options.part_bytes_max = 65536;
  options.selection.select_tokens_min = 64;
  options.selection.select_tokens_max = 96;
  options.selection.seed = 3;
  return options;
}

inline std::unique_ptr<RetrievalPolicy> MakeDynaKv(const PolicyOptions& options) {
  return MakePolicy("dynakv", options).value();
}

inline const DynaKvPolicy& DynaKvOf(PolicyWorld& world) {
  return dynamic_cast<const DynaKvPolicy&>(world.policy());
}

}  // namespace cairn::compute
