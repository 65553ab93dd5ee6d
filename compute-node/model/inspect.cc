#include "compute-node/model/inspect.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "common/kv/kv_format.h"
#include "compute-node/kernels/attention.h"
#include "compute-node/model/chat_template.h"
#include "compute-node/model/config.h"
#include "compute-node/model/forward.h"
#include "compute-node/model/tokenizer.h"
#include "compute-node/model/weights.h"

namespace cairn::compute {
namespace {

// Damage can make every tensor a problem of its own.
constexpr std::size_t kWeightProblemsShownMax = 16;

void AddLine(std::string& text, std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(text), "{:<16} {}\n", fmt::format("{}:", name), value);
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

// What `token_count` tokens take in each format: "12288 in f16, 24576 in f32".
std::string KvBytesInFormats(const ModelConfig& config, std::int64_t token_count) {
  std::string text;
  for (const KvFormat format : kKvFormats) {
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ",
                        token_count * KvTokenBytes(config, format), KvFormatName(format));
  }
  return text;
}

void AddTensorTypes(const GgufFile& file, std::string& text) {
  struct Total {
    std::int64_t count = 0;
    std::int64_t value_count = 0;
    std::int64_t bytes = 0;
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
  AddLine(text, "tensors",
          fmt::format("{} with {} values in {} bytes", all.count, all.value_count, all.bytes));
  for (const auto& [type, total] : totals) {
    AddLine(
        text, fmt::format("  {}", GgufTensorTypeName(type)),
        fmt::format("{} with {} values in {} bytes", total.count, total.value_count, total.bytes));
  }
}

void AddShape(const ModelConfig& config, std::string& text) {
  AddLine(text, "layers", std::to_string(config.layer_count));
  AddLine(text, "embedding", std::to_string(config.embedding_length));
  AddLine(text, "feed_forward", std::to_string(config.feed_forward_length));
  AddLine(text, "heads",
          fmt::format("{} query, {} KV, of {}", config.head_count, config.kv_head_count,
                      config.head_dim));
  if (config.vocab_size > 0) AddLine(text, "vocabulary", std::to_string(config.vocab_size));
  AddLine(text, "context", fmt::format("{} tokens", config.context_length));
}

void AddRope(const GgufFile& file, const ModelConfig& config, std::string& text) {
  std::string value =
      fmt::format("base {}, {} pairs", config.rope_freq_base,
                  config.rope_pairing == RopePairing::kHalves ? "half" : "adjacent");
  if (config.yarn_ext_factor > 0) {
    value += fmt::format(", yarn scaling by {} from {} tokens", 1 / config.rope_frequency_scale,
                         config.yarn_original_context);
  } else if (config.rope_frequency_scale != 1.0) {
    value += fmt::format(", linear scaling by {}", 1 / config.rope_frequency_scale);
  }
  if (file.FindTensor("rope_freqs.weight") != nullptr) value += ", divisors in rope_freqs.weight";
  AddLine(text, "rope", value);
}

// The forward pass's memory, and the states of the attention over entries that come in slices.
std::int64_t ScratchBytes(const ModelConfig& config, std::int64_t batch_tokens) {
  return ForwardScratchBytes(config, batch_tokens) + config.head_count * batch_tokens *
                                                         AttentionStateFloats(config.head_dim) *
                                                         static_cast<std::int64_t>(sizeof(float));
}

void AddSpeed(const ModelConfig& config, std::int64_t weight_bytes, const InspectOptions& options,
              std::string& text) {
  const absl::StatusOr<ReadBandwidth> bandwidth = options.probe();
  if (!bandwidth.ok()) {
    AddLine(text, "read_bandwidth", fmt::format("not measured: {}", Message(bandwidth.status())));
    return;
  }
  AddLine(
      text, "read_bandwidth",
      fmt::format("{:.1f} GB/s with {} threads over {} bytes", bandwidth->bytes_per_second / 1e9,
                  bandwidth->thread_count, bandwidth->buffer_bytes));
  std::string bounds;
  for (const std::int64_t depth : {std::int64_t{0}, std::int64_t{4096}, std::int64_t{16384}}) {
    if (depth >= config.context_length) break;
    const std::int64_t bytes = weight_bytes + depth * KvTokenBytes(config, KvFormat::kF16);
    bounds += fmt::format("{}{:.1f} after {} tokens", bounds.empty() ? "" : ", ",
                          bandwidth->bytes_per_second / static_cast<double>(bytes), depth);
  }
  AddLine(text, "decode_bound", fmt::format("tokens/s at most {}", bounds));
}

// What running it takes. REQUIRES: it runs.
void AddEstimates(const ModelConfig& config, const WeightsSurvey& survey,
                  const InspectOptions& options, std::string& text) {
  AddLine(text, "weights_memory", InMebibytes(survey.packed_bytes));
  const std::int64_t batch_tokens = std::min(options.batch_tokens, config.context_length);
  AddLine(text, "scratch_memory",
          fmt::format("{} for passes of {} tokens", InMebibytes(ScratchBytes(config, batch_tokens)),
                      batch_tokens));
  constexpr std::int64_t kManyTokens = 1024;
  AddLine(text, "flash_1k_tokens", fmt::format("bytes {}", KvBytesInFormats(config, kManyTokens)));
  AddLine(text, "decode_reads",
          fmt::format("{} bytes of weights a token, and of keys and values for each token before "
                      "it {}",
                      survey.decode_bytes, KvBytesInFormats(config, 1)));
  if (options.probe) AddSpeed(config, survey.decode_bytes, options, text);
}

void AddProblems(const std::vector<absl::Status>& problems, std::string& text) {
  if (problems.empty()) AddLine(text, "runs", "yes");
  for (const absl::Status& problem : problems) {
    AddLine(text, "runs", fmt::format("no: {}", Message(problem)));
  }
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
  ModelReport report;
  std::string& text = report.text;
  const std::size_t part_count = file.paths().size();
  AddLine(text, "format",
          fmt::format("GGUF {}, {} bytes{}", file.version(), file.byte_count(),
                      part_count > 1 ? fmt::format(" in {} files", part_count) : ""));
  AddLine(text, "architecture", StringOr(file, "general.architecture", "(none)"));
  AddLine(text, "name", StringOr(file, "general.name", "(none)"));
  ModelConfigReport config = ReportModelConfig(file);
  if (config.shape_is_known) {
    AddShape(config.config, text);
    if (config.architecture_is_known) AddRope(file, config.config, text);
    AddLine(text, "kv_bytes_token", KvBytesInFormats(config.config, 1));
  }
  AddTensorTypes(file, text);
  AddLine(text, "tokenizer",
          fmt::format("{}, pre-tokenizer {}, {} tokens",
                      StringOr(file, "tokenizer.ggml.model", "(none)"),
                      StringOr(file, "tokenizer.ggml.pre", "(none)"),
                      file.FindArrayCount("tokenizer.ggml.tokens").value_or(0)));
  AddLine(text, "chat_template", ChatFamily(file));
  report.problems = std::move(config.problems);
  const WeightsSurvey survey = SurveyWeights(file, config);
  report.problems.insert(report.problems.end(), survey.problems.begin(), survey.problems.end());
  const auto tokenizer = Tokenizer::FromGguf(file);
  if (!tokenizer.ok()) report.problems.push_back(tokenizer.status());
  if (report.problems.empty()) AddEstimates(config.config, survey, options, text);
  AddProblems(report.problems, text);
  return report;
}

}  // namespace cairn::compute
