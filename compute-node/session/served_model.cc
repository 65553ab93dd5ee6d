#include "compute-node/session/served_model.h"

#include "common/base/random_bytes.h"

namespace cairn::compute {

absl::Status ServedModel::CheckServes(SessionId conversation, const ModelIdentity& identity) const {
  const SegmentKey& key = identity.key;
  if (key.model_digest != base.key.model_digest) {
    return FailedPrecondition(
        "conversation {} belongs to another model file: start cairn-compute-node with that model",
        conversation);
  }
  if (key.kv_format != base.key.kv_format) {
    return FailedPrecondition(
        "conversation {} is stored as {}, this daemon uses {}: start it with kv_format {}",
        conversation, KvFormatName(key.kv_format), KvFormatName(base.key.kv_format),
        KvFormatName(key.kv_format));
  }
  ModelIdentity served = base;
  if (!key.adapter_digest.empty()) {
    if (!adapter_digests.contains(key.adapter_digest)) {
      return FailedPrecondition(
          "conversation {} was made with LoRA adapter {}, which this daemon has not loaded: go on "
          "with it where that adapter is loaded",
          conversation, ToHex(key.adapter_digest));
    }
    served.key.adapter_digest = key.adapter_digest;
    served.key.adapter_scale = key.adapter_scale;
  }
  if (identity == served) return absl::OkStatus();
  return FailedPrecondition("conversation {} was made with other model parameters", conversation);
}

absl::StatusOr<ModelIdentity> BaseIdentity(const Model& model, KvFormat kv_format) {
  const ModelConfig& config = model.config();
  ModelIdentity identity;
  CAIRN_ASSIGN_OR_RETURN(identity.key.model_digest, model.Digest());
  identity.key.rope_parameters =
      fmt::format("base={} scale={} pairs={}", config.rope_freq_base, config.rope_frequency_scale,
                  config.rotary_pairs == RotaryPairs::kHalves ? "halves" : "adjacent");
  identity.key.kv_format = kv_format;
  identity.layout.layer_count = static_cast<std::int32_t>(config.layer_count);
  identity.layout.head_count = static_cast<std::int32_t>(config.kv_head_count);
  identity.layout.head_dim = static_cast<std::int32_t>(config.head_dim);
  identity.layout.kv_format = kv_format;
  CAIRN_RETURN_IF_ERROR(identity.layout.Validate());
  return identity;
}

}  // namespace cairn::compute
