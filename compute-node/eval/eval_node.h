// EvalNode is the KV node of an evaluation: in this process, over memory. It ends with the program
// and meets one model, so that nothing of the model's identity but the layout matters.
//
// Threading:  as KvNode.
// Ownership:  sessions are destroyed before it.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "compute-node/kv_client/kv_client.h"
#include "compute-node/model/config.h"
#include "compute-node/session/served_model.h"

namespace cairn::eval {

class EvalNode {
 public:
  static absl::StatusOr<EvalNode> Make(const compute::ModelConfig& config, KvFormat kv_format);

  compute::KvNode& node() const { return *node_; }
  const compute::ServedModel& served() const { return served_; }
  // A session that holds nothing.
  absl::StatusOr<SessionRef> Create() const;

 private:
  EvalNode() = default;

  compute::ServedModel served_;
  std::unique_ptr<compute::KvNode> node_;
};

}  // namespace cairn::eval
