#include "compute-node/model/inspect.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/json_string.h"
#include "common/kv/kv_format.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/model/chat/chat_template.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/model/forward/weights.h"
#include "compute-node/model/tokenizer/tokenizer.h"

namespace cairn::compute {
namespace {

// Damage can make every tensor a problem of its own.
constexpr std::size_t kWeightProblemsShownMax = 16;

// The lines, and the same as fields of a JSON object.
struct Report {
  std::string text;
  std::vector<std::string> fields;
};

void AddText(Report& report, std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(report.text), "{:<16} {}\n", fmt::format("{}:", name), value);
}

void AddField(Report& report, std::string_view name, std::string_view json) {
  report.fields.push_back(fmt::format("{}: {}", JsonString(name), json));
}

void Add(Report& report, std::string_view name, std::string_view text, std::string_view json) {
  AddText(report, name, text);
  AddField(report, name, json);
}

void AddLine(Report& report, std::string_view name, std::string_view value) {
  Add(report, name, value, JsonString(value));
}

void AddNumber(Report& report, std::string_view name, std::int64_t number) {
  Add(report, name, std::to_string(number), std::to_string(number));
}

std::string StringOr(const GgufFile& file, std::string_view key, std::string_view fallback) {
  return PrintableText(file.FindString(key).value_or(fallback));
}

std::string ChatFamily(const GgufFile& file) {
  const absl::StatusOr<ChatTemplate> chat =
      ChatTemplate::Recognise(file.FindString(kChatTemplateKey).value_or(""));
  if (chat.ok()) {
    return std::string(chat->name());
  }
  return absl::IsNotFound(chat.status()) ? "(none)" : "(of no family that Cairn knows)";
}

std::string InMebibytes(std::int64_t bytes) {
  constexpr double kMebibyte = 1 << 20;
  return fmt::format("{} bytes ({:.1f} MiB)", bytes, static_cast<double>(bytes) / kMebibyte);
}

std::int64_t KvTokenBytes(const ModelConfig& config, KvFormat format) {
  return config.layer_count * config.kv_head_count * KvEntryBytes(format, config.head_dim);
}

// A JSON object of what `token_count` tokens take, by format.
std::string KvBytesJson(const ModelConfig& config, std::int64_t token_count) {
  std::vector<std::string> fields;
  fields.reserve(std::size(kKvFormats));
  for (const KvFormat format : kKvFormats) {
    fields.push_back(fmt::format("{}: {}", JsonString(KvFormatName(format)),
                                 token_count * KvTokenBytes(config, format)));
  }
  return fmt::format("{{{}}}", fmt::join(fields, ", "));
}

// The same for people: "12288 in f16, 24576 in f32".
std::string KvBytesInFormats(const ModelConfig& config, std::int64_t token_count) {
  std::string text;
  for (const KvFormat format : kKvFormats) {
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ",
                        token_count * KvTokenBytes(config, format), KvFormatName(format));
  }
  return text;
}

void AddTensorTypes(const GgufFile& file, Report& report) {
  struct Total {
    std::int64_t count = 0;
    std::int64_t value_count = 0;
    std::int64_t bytes = 0;

    std::string Text() const {
      return fmt::format("{} with {} values in {} bytes", count, value_count, bytes);
    }
    std::string Json() const {
      return fmt::format("{{\"count\": {}, \"values\": {}, \"bytes\": {}}}", count, value_count,
                         bytes);
    }
  };
  std::map<GgufTensorType, Total> totals;
  Total all;
  for (const GgufTensor& tensor : file.tensors()) {
    for (Total* total : {&totals[tensor.type], &all}) {
      total->count += 1;
      total->value_count += tensor.value_count;
      total->bytes += static_cast<std::int64_t>(tensor.data.size());
    }
  }
  Add(report, "tensors", all.Text(), all.Json());
  std::vector<std::string> types;
  for (const auto& [type, total] : totals) {
    const std::string name(GgufTensorTypeName(type));
    AddText(report, "  " + name, total.Text());
    types.push_back(fmt::format("{}: {}", JsonString(name), total.Json()));
  }
  AddField(report, "tensor_types", fmt::format("{{{}}}", fmt::join(types, ", ")));
}

void AddShape(const ModelConfig& config, Report& report) {
  AddNumber(report, "layers", config.layer_count);
  AddNumber(report, "embedding", config.embedding_length);
  AddNumber(report, "feed_forward", config.feed_forward_length);
  Add(report, "heads",
      fmt::format("{} query, {} KV, of {}", config.head_count, config.kv_head_count,
                  config.head_dim),
      fmt::format("{{\"query\": {}, \"kv\": {}, \"dim\": {}}}", config.head_count,
                  config.kv_head_count, config.head_dim));
  if (config.vocab_size > 0) AddNumber(report, "vocabulary", config.vocab_size);
  Add(report, "context", fmt::format("{} tokens", config.context_length),
      std::to_string(config.context_length));
}

void AddRope(const GgufFile& file, const ModelConfig& config, Report& report) {
  std::string value =
      fmt::format("base {}, {} pairs", config.rope_freq_base,
                  config.rotary_pairs == RotaryPairs::kHalves ? "half" : "adjacent");
  if (config.yarn_ext_factor > 0) {
    value += fmt::format(", yarn scaling by {} from {} tokens", 1 / config.rope_frequency_scale,
                         config.yarn_original_context);
  } else if (config.rope_frequency_scale != 1.0) {
    value += fmt::format(", linear scaling by {}", 1 / config.rope_frequency_scale);
  }
  if (file.FindTensor("rope_freqs.weight") != nullptr) value += ", divisors in rope_freqs.weight";
  AddLine(report, "rope", value);
}

// The forward pass's memory, and the states of the attention over entries that come in slices.
std::int64_t ScratchBytes(const ModelConfig& config, std::int64_t batch_tokens) {
  return ForwardScratchBytes(config, batch_tokens) + config.head_count * batch_tokens *
                                                         AttentionStateFloats(config.head_dim) *
                                                         static_cast<std::int64_t>(sizeof(float));
}

void AddSpeed(const ModelConfig& config, std::int64_t weight_bytes, const InspectOptions& options,
              Report& report) {
  const absl::StatusOr<ReadBandwidth> bandwidth = options.probe();
  if (!bandwidth.ok()) {
    AddText(report, "read_bandwidth", fmt::format("not measured: {}", Message(bandwidth.status())));
    return;
  }
  Add(report, "read_bandwidth",
      fmt::format("{:.1f} GB/s with {} threads over {} bytes", bandwidth->bytes_per_second / 1e9,
                  bandwidth->thread_count, bandwidth->buffer_bytes),
      fmt::format("{{\"bytes_per_second\": {:.0f}, \"threads\": {}, \"buffer_bytes\": {}}}",
                  bandwidth->bytes_per_second, bandwidth->thread_count, bandwidth->buffer_bytes));
  std::vector<std::string> bounds;
  std::vector<std::string> fields;
  for (const std::int64_t depth : {std::int64_t{0}, std::int64_t{4096}, std::int64_t{16384}}) {
    if (depth >= config.context_length) break;
    const std::int64_t bytes = weight_bytes + depth * KvTokenBytes(config, KvFormat::kF16);
    const double rate = bandwidth->bytes_per_second / static_cast<double>(bytes);
    bounds.push_back(fmt::format("{:.1f} after {} tokens", rate, depth));
    fields.push_back(fmt::format("\"{}\": {:.3f}", depth, rate));
  }
  Add(report, "decode_bound", fmt::format("tokens/s at most {}", fmt::join(bounds, ", ")),
      fmt::format("{{{}}}", fmt::join(fields, ", ")));
}

// What running it takes. REQUIRES: it runs.
void AddEstimates(const ModelConfig& config, const WeightsSurvey& survey,
                  const InspectOptions& options, Report& report) {
  Add(report, "weights_memory", InMebibytes(survey.packed_bytes),
      std::to_string(survey.packed_bytes));
  const std::int64_t batch_tokens = std::min(options.batch_tokens, config.context_length);
  const std::int64_t scratch_bytes = ScratchBytes(config, batch_tokens);
  Add(report, "scratch_memory",
      fmt::format("{} for passes of {} tokens", InMebibytes(scratch_bytes), batch_tokens),
      fmt::format("{{\"bytes\": {}, \"pass_tokens\": {}}}", scratch_bytes, batch_tokens));
  constexpr std::int64_t kManyTokens = 1024;
  Add(report, "flash_1k_tokens", fmt::format("bytes {}", KvBytesInFormats(config, kManyTokens)),
      KvBytesJson(config, kManyTokens));
  Add(report, "decode_reads",
      fmt::format("{} bytes of weights a token, and of keys and values for each token before it {}",
                  survey.decode_bytes, KvBytesInFormats(config, 1)),
      std::to_string(survey.decode_bytes));
  if (options.probe) AddSpeed(config, survey.decode_bytes, options, report);
}

void AddProblems(const std::vector<absl::Status>& problems, Report& report) {
  if (problems.empty()) AddText(report, "runs", "yes");
  std::vector<std::string> texts;
  for (const absl::Status& problem : problems) {
    AddText(report, "runs", fmt::format("no: {}", Message(problem)));
    texts.push_back(JsonString(Message(problem)));
  }
  AddField(report, "runs", problems.empty() ? "true" : "false");
  AddField(report, "problems", fmt::format("[{}]", fmt::join(texts, ", ")));
}

// Tensors are compared with a shape only if there is one.
WeightsSurvey SurveyWeights(const GgufFile& file, const ModelConfigReport& config) {
  if (!config.shape_is_known || !config.architecture_is_known || config.config.vocab_size == 0) {
    return {};
  }
  WeightsSurvey survey = Weights::Survey(file, config.config);
  const std::size_t count = survey.problems.size();
  if (count > kWeightProblemsShownMax) {
    survey.problems.resize(kWeightProblemsShownMax);
    survey.problems.push_back(
        InvalidArgument("{} more tensors do not fit", count - kWeightProblemsShownMax));
  }
  return survey;
}

}  // namespace

ModelReport InspectModel(const GgufFile& file, const InspectOptions& options) {
  Report report;
  const std::size_t part_count = file.paths().size();
  AddLine(report, "format",
          fmt::format("GGUF {}, {} bytes{}", file.version(), file.byte_count(),
                      part_count > 1 ? fmt::format(" in {} files", part_count) : ""));
  AddLine(report, "architecture", StringOr(file, "general.architecture", "(none)"));
  AddLine(report, "name", StringOr(file, "general.name", "(none)"));
  ModelConfigReport config = ReportModelConfig(file);
  if (config.shape_is_known) {
    AddShape(config.config, report);
    if (config.architecture_is_known) AddRope(file, config.config, report);
    Add(report, "kv_bytes_token", KvBytesInFormats(config.config, 1),
        KvBytesJson(config.config, 1));
  }
  AddTensorTypes(file, report);
  AddLine(report, "tokenizer",
          fmt::format("{}, pre-tokenizer {}, {} tokens",
                      StringOr(file, "tokenizer.ggml.model", "(none)"),
                      StringOr(file, "tokenizer.ggml.pre", "(none)"),
                      file.FindArrayCount("tokenizer.ggml.tokens").value_or(0)));
  AddLine(report, "chat_template", ChatFamily(file));
  std::vector<absl::Status> problems = std::move(config.problems);
  const WeightsSurvey survey = SurveyWeights(file, config);
  problems.insert(problems.end(), survey.problems.begin(), survey.problems.end());
  const auto tokenizer = Tokenizer::FromGguf(file);
  if (!tokenizer.ok()) problems.push_back(tokenizer.status());
  if (problems.empty()) AddEstimates(config.config, survey, options, report);
  AddProblems(problems, report);
  return {std::move(report.text), fmt::format("{{{}}}\n", fmt::join(report.fields, ", ")),
          std::move(problems)};
}

}  // namespace cairn::compute
