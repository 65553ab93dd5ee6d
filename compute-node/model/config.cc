#include "compute-node/model/config.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

namespace cairn::compute {
namespace {

// Reads the keys of one architecture, "llama.block_count" and so on.
class Reader {
 public:
  Reader(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  std::string Key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  // An integer in [min, max]; `fallback` when the key is absent, an error when there is none.
  absl::StatusOr<std::int64_t> Count(std::string_view name, std::int64_t min, std::int64_t max,
                                     std::optional<std::int64_t> fallback = std::nullopt) const {
    const std::string key = Key(name);
    if (!file_.Has(key)) {
      return Absent(key, fallback);
    }
    std::optional<std::int64_t> value = file_.FindInt(key);
    if (file_.FindType(key) == GgufValueType::kArray) {
      CAIRN_ASSIGN_OR_RETURN(value, SameForAllLayers(key));
    }
    if (!value) {
      return InvalidArgument("model metadata: key '{}' is no integer", key);
    }
    if (*value < min || *value > max) {
      return InvalidArgument("model metadata: key '{}' is {}, it must be {} to {}", key, *value,
                             min, max);
    }
    return *value;
  }

  absl::StatusOr<double> Number(std::string_view name, double min, double max,
                                std::optional<double> fallback) const {
    const std::string key = Key(name);
    if (!file_.Has(key)) {
      return Absent(key, fallback);
    }
    const std::optional<double> value = file_.FindFloat(key);
    if (!value) {
      return InvalidArgument("model metadata: key '{}' is no floating point number", key);
    }
    if (!(*value >= min && *value <= max)) {
      return InvalidArgument("model metadata: key '{}' is {}, it must be {} to {}", key, *value,
                             min, max);
    }
    return *value;
  }

 private:
  template <typename Value>
  static absl::StatusOr<Value> Absent(const std::string& key, std::optional<Value> fallback) {
    if (fallback) {
      return *fallback;
    }
    return InvalidArgument("model metadata: key '{}' is missing; the file is no complete model",
                           key);
  }

  absl::StatusOr<std::optional<std::int64_t>> SameForAllLayers(const std::string& key) const {
    const std::optional<std::vector<std::int32_t>> values = file_.FindInt32Array(key);
    if (!values || values->empty()) {
      return InvalidArgument("model metadata: key '{}' is no integer and no array of integers",
                             key);
    }
    for (const std::int32_t value : *values) {
      if (value != values->front()) {
        return Unimplemented(
            "model metadata: key '{}' differs between layers ({} and {}), which Cairn does not run",
            key, values->front(), value);
      }
    }
    return values->front();
  }

  const GgufFile& file_;
  std::string architecture_;
};

absl::Status ReadShape(const Reader& reader, ModelConfig& config) {
  CAIRN_ASSIGN_OR_RETURN(config.layer_count, reader.Count("block_count", 1, kLayerCountMax));
  CAIRN_ASSIGN_OR_RETURN(config.embedding_length,
                         reader.Count("embedding_length", 1, kEmbeddingLengthMax));
  CAIRN_ASSIGN_OR_RETURN(config.feed_forward_length,
                         reader.Count("feed_forward_length", 1, kFeedForwardLengthMax));
  CAIRN_ASSIGN_OR_RETURN(config.context_length,
                         reader.Count("context_length", 1, kContextLengthMax));
  CAIRN_ASSIGN_OR_RETURN(config.head_count, reader.Count("attention.head_count", 1, kHeadCountMax));
  CAIRN_ASSIGN_OR_RETURN(config.kv_head_count, reader.Count("attention.head_count_kv", 1,
                                                            config.head_count, config.head_count));
  if (config.head_count % config.kv_head_count != 0) {
    return InvalidArgument("model metadata: {} query heads cannot share {} KV heads evenly",
                           config.head_count, config.kv_head_count);
  }
  const std::int64_t default_dim = config.embedding_length / config.head_count;
  CAIRN_ASSIGN_OR_RETURN(config.head_dim,
                         reader.Count("attention.key_length", 1, kHeadDimMax, default_dim));
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t value_length,
                         reader.Count("attention.value_length", 1, kHeadDimMax, config.head_dim));
  if (value_length != config.head_dim) {
    return Unimplemented(
        "model metadata: value heads of {} but key heads of {}, which Cairn does not run",
        value_length, config.head_dim);
  }
  constexpr std::int64_t kHeadDimMultiple = 8;
  if (config.head_dim % kHeadDimMultiple != 0 || config.head_dim > kHeadDimMax) {
    return Unimplemented("model metadata: head size {}; Cairn runs multiples of {} up to {}",
                         config.head_dim, kHeadDimMultiple, kHeadDimMax);
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, const Reader& reader, ModelConfig& config) {
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t dimensions,
                         reader.Count("rope.dimension_count", 1, kHeadDimMax, config.head_dim));
  if (dimensions != config.head_dim) {
    return Unimplemented(
        "model metadata: rotary embedding of {} of {} dimensions, which Cairn does not run",
        dimensions, config.head_dim);
  }
  constexpr double kFreqBaseMax = 1e12;
  CAIRN_ASSIGN_OR_RETURN(config.rope_freq_base,
                         reader.Number("rope.freq_base", 1.0, kFreqBaseMax, 10000.0));
  const std::string type_key = reader.Key("rope.scaling.type");
  const std::string_view type = file.FindString(type_key).value_or("linear");
  if (type != "none" && type != "linear") {
    return Unimplemented(
        "model metadata: '{}' is '{}', which Cairn does not run; a file without rope scaling gives "
        "the model's "
        "ordinary context length",
        type_key, PrintableText(type));
  }
  constexpr double kFactorMax = 1e6;
  CAIRN_ASSIGN_OR_RETURN(const double old_factor,
                         reader.Number("rope.scale_linear", 0.0, kFactorMax, 1.0));
  CAIRN_ASSIGN_OR_RETURN(const double factor,
                         reader.Number("rope.scaling.factor", 0.0, kFactorMax, old_factor));
  // Files write 0 for "not set".
  config.rope_frequency_scale = type == "none" || factor == 0.0 ? 1.0 : 1.0 / factor;
  CAIRN_ASSIGN_OR_RETURN(const double attention_factor,
                         reader.Number("rope.scaling.attn_factor", 0.0, kFactorMax, 1.0));
  if (attention_factor != 1.0) {
    return Unimplemented("model metadata: '{}' is {}, which Cairn does not run",
                         reader.Key("rope.scaling.attn_factor"), attention_factor);
  }
  return absl::OkStatus();
}

absl::Status RefuseUnsupported(const Reader& reader, const ModelConfig& config) {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t window,
                         reader.Count("attention.sliding_window", 0, kAny, 0));
  if (window > 0 && window < config.context_length) {
    return Unimplemented(
        "model metadata: sliding-window attention of {} tokens, which Cairn does not run", window);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::int64_t expert_count, reader.Count("expert_count", 0, kAny, 0));
  if (expert_count > 0) {
    return Unimplemented("model metadata: a mixture of {} experts, which Cairn does not run",
                         expert_count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  const std::optional<std::string_view> architecture = file.FindString("general.architecture");
  if (!architecture) {
    return InvalidArgument(
        "model metadata: key 'general.architecture' is missing; the file is no complete model");
  }
  if (*architecture != "llama" && *architecture != "qwen2") {
    return Unimplemented(
        "model architecture '{}' is not supported; Cairn runs llama (also Mistral) and qwen2",
        PrintableText(*architecture));
  }
  const std::string_view type = file.FindString("general.type").value_or("model");
  if (type != "model") {
    return InvalidArgument("the file is of type '{}', not a model; give the base model's file",
                           PrintableText(type));
  }
  ModelConfig config;
  config.architecture = *architecture;
  config.name = file.FindString("general.name").value_or("");
  const Reader reader(file, config.architecture);
  CAIRN_RETURN_IF_ERROR(ReadShape(reader, config));
  CAIRN_RETURN_IF_ERROR(ReadRope(file, reader, config));
  CAIRN_RETURN_IF_ERROR(RefuseUnsupported(reader, config));
  constexpr double kEpsilonMax = 1.0;
  CAIRN_ASSIGN_OR_RETURN(config.rms_norm_epsilon, reader.Number("attention.layer_norm_rms_epsilon",
                                                                0.0, kEpsilonMax, std::nullopt));
  config.rope_pairing =
      config.architecture == "qwen2" ? RopePairing::kHalves : RopePairing::kAdjacent;
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return InvalidArgument(
        "tensor 'token_embd.weight' is missing; the file holds no model weights");
  }
  config.vocab_size = embedding->row_count();
  if (config.vocab_size > kVocabSizeMax) {
    return InvalidArgument("tensor 'token_embd.weight' has {} rows, over the limit {}",
                           config.vocab_size, kVocabSizeMax);
  }
  return config;
}

}  // namespace cairn::compute
