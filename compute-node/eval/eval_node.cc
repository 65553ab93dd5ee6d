#include "compute-node/eval/eval_node.h"

#include <string>

#include "compute-node/kv_client/in_process_kv_node.h"

namespace cairn::eval {

absl::StatusOr<EvalNode> EvalNode::Make(const compute::ModelConfig& config, KvFormat kv_format) {
  EvalNode made;
  compute::ModelIdentity& identity = made.served_.base;
  identity.key.model_digest = std::string(32, '\0');
  identity.key.rope_parameters = "this process's";
  identity.key.kv_format = kv_format;
  identity.layout = {.layer_count = static_cast<std::int32_t>(config.layer_count),
                     .head_count = static_cast<std::int32_t>(config.kv_head_count),
                     .head_dim = static_cast<std::int32_t>(config.head_dim),
                     .kv_format = kv_format};
  CAIRN_ASSIGN_OR_RETURN(made.node_, compute::MakeRamKvNode({}));
  return made;
}

absl::StatusOr<SessionRef> EvalNode::Create() const {
  CreateSession request;
  request.key = served_.base.key;
  request.layout = served_.base.layout;
  return node_->Create(request);
}

}  // namespace cairn::eval
