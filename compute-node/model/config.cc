#include "compute-node/model/config.h"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace cairn::compute {
namespace {

constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();

// Reads the keys of one architecture, "llama.block_count" and so on, and collects what is wrong
// with them; then 0 stands for the value.
class Reader {
 public:
  Reader(const GgufFile& file, ModelConfigReport& report)
      : file_(file), report_(report), config_(report.config) {}

  void ReadAll();

 private:
  void ReadShape();
  void ReadHeads();
  void ReadRope();
  void ReadYarn();
  void ReadRefused();
  void ReadVocabularySize();

  std::string Key(std::string_view name) const {
    return fmt::format("{}.{}", config_.architecture, name);
  }
  void Problem(absl::Status status) { report_.problems.push_back(std::move(status)); }
  // `fallback` when the key is absent; without one that is a problem.
  std::int64_t Count(std::string_view name, std::int64_t min, std::int64_t max,
                     std::optional<std::int64_t> fallback = std::nullopt);
  double Number(std::string_view name, double min, double max,
                std::optional<double> fallback = std::nullopt);
  template <typename Value>
  Value Absent(const std::string& key, std::optional<Value> fallback);
  template <typename Value>
  Value InRange(std::string_view kind, const std::string& key, std::optional<Value> value,
                Value min, Value max);
  absl::StatusOr<std::int64_t> SameForAllLayers(const std::string& key) const;

  const GgufFile& file_;
  ModelConfigReport& report_;
  ModelConfig& config_;
};

template <typename Value>
Value Reader::Absent(const std::string& key, std::optional<Value> fallback) {
  if (fallback) return *fallback;
  Problem(InvalidArgument("model metadata: key '{}' is missing; the file is no complete model",
                          PrintableText(key)));
  return 0;
}

template <typename Value>
Value Reader::InRange(std::string_view kind, const std::string& key, std::optional<Value> value,
                      Value min, Value max) {
  if (!value) {
    Problem(InvalidArgument("model metadata: key '{}' is no {}", PrintableText(key), kind));
    return 0;
  }
  if (!(*value >= min && *value <= max)) {
    Problem(InvalidArgument("model metadata: key '{}' is {}, it must be {} to {}",
                            PrintableText(key), *value, min, max));
    return 0;
  }
  return *value;
}

absl::StatusOr<std::int64_t> Reader::SameForAllLayers(const std::string& key) const {
  const std::optional<std::vector<std::int32_t>> values = file_.FindInt32Array(key);
  if (!values) {
    return InvalidArgument("model metadata: key '{}' is no integer and no array of integers",
                           PrintableText(key));
  }
  if (values->empty() || std::ssize(*values) != config_.layer_count) {
    return InvalidArgument("model metadata: key '{}' has {} elements for {} layers",
                           PrintableText(key), values->size(), config_.layer_count);
  }
  for (const std::int32_t value : *values) {
    if (value != values->front()) {
      return Unimplemented(
          "model metadata: key '{}' differs between layers ({} and {}), which Cairn does not run",
          PrintableText(key), values->front(), value);
    }
  }
  return values->front();
}

std::int64_t Reader::Count(std::string_view name, std::int64_t min, std::int64_t max,
                           std::optional<std::int64_t> fallback) {
  const std::string key = Key(name);
  if (!file_.Has(key)) return Absent(key, fallback);
  std::optional<std::int64_t> value = file_.FindInt(key);
  if (file_.FindType(key) == GgufValueType::kArray) {
    const absl::StatusOr<std::int64_t> same = SameForAllLayers(key);
    if (!same.ok()) {
      Problem(same.status());
      return 0;
    }
    value = *same;
  }
  return InRange("integer", key, value, min, max);
}

double Reader::Number(std::string_view name, double min, double max,
                      std::optional<double> fallback) {
  const std::string key = Key(name);
  if (!file_.Has(key)) return Absent(key, fallback);
  return InRange("floating point number", key, file_.FindFloat(key), min, max);
}

void Reader::ReadShape() {
  const std::size_t problems_before = report_.problems.size();
  config_.layer_count = Count("block_count", 1, kLayerCountMax);
  config_.embedding_length = Count("embedding_length", 1, kEmbeddingLengthMax);
  config_.feed_forward_length = Count("feed_forward_length", 1, kFeedForwardLengthMax);
  config_.context_length = Count("context_length", 1, kContextLengthMax);
  config_.head_count = Count("attention.head_count", 1, kHeadCountMax);
  if (config_.head_count > 0) ReadHeads();
  report_.shape_is_known = report_.problems.size() == problems_before;
}

void Reader::ReadHeads() {
  config_.kv_head_count =
      Count("attention.head_count_kv", 1, config_.head_count, config_.head_count);
  if (config_.kv_head_count > 0 && config_.head_count % config_.kv_head_count != 0) {
    Problem(InvalidArgument("model metadata: {} query heads cannot share {} KV heads evenly",
                            config_.head_count, config_.kv_head_count));
  }
  const std::int64_t default_dim = config_.embedding_length / config_.head_count;
  config_.head_dim = Count("attention.key_length", 1, kHeadDimMax, default_dim);
  const std::int64_t value_length =
      Count("attention.value_length", 1, kHeadDimMax, config_.head_dim);
  if (default_dim == 0 && config_.embedding_length > 0 && !file_.Has(Key("attention.key_length"))) {
    Problem(InvalidArgument("model metadata: {} heads in an embedding of {}", config_.head_count,
                            config_.embedding_length));
  }
  if (config_.head_dim == 0 || value_length == 0) return;
  if (value_length != config_.head_dim) {
    Problem(Unimplemented(
        "model metadata: value heads of {} but key heads of {}, which Cairn does not run",
        value_length, config_.head_dim));
  }
  constexpr std::int64_t kHeadDimMultiple = 8;
  if (config_.head_dim % kHeadDimMultiple != 0 || config_.head_dim > kHeadDimMax) {
    Problem(Unimplemented("model metadata: head size {}; Cairn runs multiples of {} up to {}",
                          config_.head_dim, kHeadDimMultiple, kHeadDimMax));
  }
}

void Reader::ReadRope() {
  const std::int64_t dimensions = Count("rope.dimension_count", 1, kHeadDimMax, config_.head_dim);
  if (dimensions != 0 && config_.head_dim != 0 && dimensions != config_.head_dim) {
    Problem(Unimplemented(
        "model metadata: rotary embedding of {} of {} dimensions, which Cairn does not run",
        dimensions, config_.head_dim));
  }
  constexpr double kFreqBaseMax = 1e12;
  config_.rope_freq_base = Number("rope.freq_base", 1.0, kFreqBaseMax, 10000.0);
  const std::string type_key = Key("rope.scaling.type");
  const std::string_view type = file_.FindString(type_key).value_or("linear");
  if (file_.Has(type_key) && file_.FindType(type_key) != GgufValueType::kString) {
    Problem(InvalidArgument("model metadata: key '{}' is no string", PrintableText(type_key)));
  } else if (type != "none" && type != "linear" && type != "yarn") {
    Problem(Unimplemented(
        "model metadata: '{}' is '{}'; Cairn runs none, linear and yarn: a file without this "
        "scaling gives the model's ordinary context length",
        PrintableText(type_key), PrintableText(type)));
  }
  constexpr double kFactorMax = 1e6;
  const double old_factor = Number("rope.scale_linear", 0.0, kFactorMax, 1.0);
  const double factor = Number("rope.scaling.factor", 0.0, kFactorMax, old_factor);
  // Files write 0 for "not set".
  config_.rope_frequency_scale = type == "none" || factor == 0.0 ? 1.0 : 1.0 / factor;
  const double attention_factor = Number("rope.scaling.attn_factor", 0.0, kFactorMax, 1.0);
  config_.rope_magnitude = attention_factor == 0.0 ? 1.0 : attention_factor;
  if (type == "yarn") ReadYarn();
}

void Reader::ReadYarn() {
  constexpr double kFactorMax = 1e6;
  // Negative stands for "not set".
  const double ext_factor = Number("rope.scaling.yarn_ext_factor", -1.0, 1.0, -1.0);
  config_.yarn_ext_factor = ext_factor < 0 ? 1.0 : ext_factor;
  const double attention_factor = Number("rope.scaling.yarn_attn_factor", 0.0, kFactorMax, 1.0);
  config_.rope_magnitude *= attention_factor == 0.0 ? 1.0 : attention_factor;
  constexpr double kTurnsMin = 1e-3;
  constexpr double kTurnsMax = 1e6;
  config_.yarn_beta_fast = Number("rope.scaling.yarn_beta_fast", kTurnsMin, kTurnsMax, 32.0);
  config_.yarn_beta_slow = Number("rope.scaling.yarn_beta_slow", kTurnsMin, kTurnsMax, 1.0);
  if (config_.yarn_beta_fast < config_.yarn_beta_slow) {
    Problem(InvalidArgument("model metadata: '{}' is {}, which is less than yarn_beta_slow, {}",
                            PrintableText(Key("rope.scaling.yarn_beta_fast")),
                            config_.yarn_beta_fast, config_.yarn_beta_slow));
  }
  const std::int64_t original =
      Count("rope.scaling.original_context_length", 0, kContextLengthMax, 0);
  config_.yarn_original_context =
      static_cast<double>(original > 0 ? original : config_.context_length);
  if (config_.rope_freq_base == 1.0) {
    Problem(
        InvalidArgument("model metadata: '{}' is 1: all frequencies are the same, yarn cannot "
                        "tell them apart",
                        PrintableText(Key("rope.freq_base"))));
  }
}

// What changes the model's numbers and is not computed here. Running without it would give wrong
// answers without a word.
void Reader::ReadRefused() {
  const std::int64_t window = Count("attention.sliding_window", 0, kAnyCount, 0);
  if (window > 0 && window < config_.context_length) {
    Problem(Unimplemented(
        "model metadata: sliding-window attention of {} tokens, which Cairn does not run: every "
        "token attends all of the {} before it",
        window, config_.context_length));
  }
  const std::int64_t expert_count = Count("expert_count", 0, kAnyCount, 0);
  if (expert_count > 0) {
    Problem(Unimplemented("model metadata: a mixture of {} experts, which Cairn does not run",
                          expert_count));
  }
  const std::string causal = Key("attention.causal");
  if (file_.Has(causal) && !file_.FindBool(causal)) {
    Problem(InvalidArgument("model metadata: key '{}' is no bool", PrintableText(causal)));
  } else if (file_.FindBool(causal) == false) {
    Problem(
        Unimplemented("model metadata: '{}' is false: the model makes embeddings of whole texts, "
                      "which Cairn does not run",
                      PrintableText(causal)));
  }
  constexpr struct {
    std::string_view name;
    double neutral;
  } kScales[] = {{"attention.scale", 0},
                 {"attention.clamp_kqv", 0},
                 {"attention.temperature_scale", 0},
                 {"rope.scaling.yarn_log_multiplier", 0},
                 {"attn_logit_softcapping", 0},
                 {"final_logit_softcapping", 0},
                 {"logit_scale", 1},
                 {"embedding_scale", 1},
                 {"residual_scale", 1}};
  for (const auto& scale : kScales) {
    const double value = Number(scale.name, -std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::infinity(), scale.neutral);
    // Files write 0 for "not set".
    if (value != 0.0 && value != scale.neutral) {
      Problem(Unimplemented("model metadata: '{}' is {}, which Cairn does not run",
                            PrintableText(Key(scale.name)), value));
    }
  }
}

void Reader::ReadVocabularySize() {
  const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    Problem(
        InvalidArgument("tensor 'token_embd.weight' is missing; the file holds no model weights"));
    return;
  }
  config_.vocab_size = embedding->row_count();
  if (config_.vocab_size > kVocabSizeMax) {
    Problem(InvalidArgument("tensor 'token_embd.weight' has {} rows, over the limit {}",
                            config_.vocab_size, kVocabSizeMax));
  }
  const std::int64_t declared = Count("vocab_size", 1, kVocabSizeMax, config_.vocab_size);
  if (declared != 0 && declared != config_.vocab_size) {
    Problem(
        InvalidArgument("model metadata: key '{}' is {}, but tensor 'token_embd.weight' has {} "
                        "rows, one for each token; the file was put together wrongly",
                        PrintableText(Key("vocab_size")), declared, config_.vocab_size));
  }
  // A file without any tokenizer can still be run on token ids.
  const std::int64_t token_count =
      file_.FindArrayCount("tokenizer.ggml.tokens").value_or(config_.vocab_size);
  if (token_count != config_.vocab_size) {
    Problem(
        InvalidArgument("the tokenizer has {} tokens (tokenizer.ggml.tokens), but tensor "
                        "'token_embd.weight' has {} rows, one for each token; the file was put "
                        "together wrongly",
                        token_count, config_.vocab_size));
  }
}

void Reader::ReadAll() {
  config_.name = file_.FindString("general.name").value_or("");
  constexpr std::string_view kTypeKey = "general.type";
  if (file_.Has(kTypeKey) && !file_.FindString(kTypeKey)) {
    Problem(InvalidArgument("model metadata: key '{}' is no string", kTypeKey));
  }
  const std::string_view type = file_.FindString(kTypeKey).value_or("model");
  if (type != "model") {
    Problem(InvalidArgument("the file is of type '{}', not a model; give the base model's file",
                            PrintableText(type)));
    return;
  }
  const std::optional<std::string_view> architecture = file_.FindString("general.architecture");
  if (!architecture) {
    Problem(InvalidArgument(
        "model metadata: key 'general.architecture' is missing; the file is no complete model"));
    return;
  }
  config_.architecture = *architecture;
  report_.architecture_is_known = *architecture == "llama" || *architecture == "qwen2";
  config_.rotary_pairs = *architecture == "qwen2" ? RotaryPairs::kHalves : RotaryPairs::kAdjacent;
  if (!report_.architecture_is_known) {
    Problem(Unimplemented("model architecture '{}' is not supported; Cairn runs {}",
                          PrintableText(*architecture), kArchitectureNames));
  }
  if (file_.tensors().empty()) {
    // A vocabulary's keys for a shape are often missing or 0: they say nothing about a model.
    Problem(InvalidArgument(
        "the file holds a vocabulary and no weights (it has no tensors); give a whole model"));
    return;
  }
  // Another architecture's keys mostly have the same meaning; what they lack is no fault of theirs.
  const std::size_t problem_count = report_.problems.size();
  ReadShape();
  if (report_.architecture_is_known) {
    ReadRope();
    ReadRefused();
    constexpr double kEpsilonMax = 1.0;
    config_.rms_norm_epsilon = Number("attention.layer_norm_rms_epsilon", 0.0, kEpsilonMax);
    ReadVocabularySize();
  } else {
    report_.problems.resize(problem_count);
  }
}

}  // namespace

ModelConfigReport ReportModelConfig(const GgufFile& file) {
  ModelConfigReport report;
  Reader(file, report).ReadAll();
  return report;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfigReport report = ReportModelConfig(file);
  if (!report.problems.empty()) return std::move(report.problems.front());
  return std::move(report.config);
}

}  // namespace cairn::compute
