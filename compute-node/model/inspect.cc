#include "compute-node/model/inspect.h"

#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "common/kv/kv_format.h"
#include "compute-node/model/chat_template.h"
#include "compute-node/model/config.h"
#include "compute-node/model/tokenizer.h"
#include "compute-node/model/weights.h"

namespace cairn::compute {
namespace {

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

absl::Status CheckRuns(const GgufFile& file, const absl::StatusOr<ModelConfig>& config) {
  CAIRN_RETURN_IF_ERROR(config.status());
  const WeightsSurvey survey = Weights::Survey(file, *config);
  if (!survey.problems.empty()) return survey.problems.front();
  return Tokenizer::FromGguf(file).status();
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
  AddLine(text, "vocabulary", std::to_string(config.vocab_size));
  AddLine(text, "context", fmt::format("{} tokens", config.context_length));
  AddLine(text, "rope",
          fmt::format("base {}, {} pairs{}", config.rope_freq_base,
                      config.rope_pairing == RopePairing::kHalves ? "half" : "adjacent",
                      config.rope_frequency_scale == 1.0
                          ? ""
                          : fmt::format(", frequencies times {}", config.rope_frequency_scale)));
  const std::int64_t entry_count = config.layer_count * config.kv_head_count;
  AddLine(text, "kv_bytes_token",
          fmt::format("{} in f16, {} in f32",
                      entry_count * KvEntryBytes(KvFormat::kF16, config.head_dim),
                      entry_count * KvEntryBytes(KvFormat::kF32, config.head_dim)));
}

}  // namespace

ModelReport InspectModel(const GgufFile& file) {
  ModelReport report;
  std::string& text = report.text;
  AddLine(text, "format", fmt::format("GGUF {}, {} bytes", file.version(), file.byte_count()));
  AddLine(text, "architecture", StringOr(file, "general.architecture", "(none)"));
  AddLine(text, "name", StringOr(file, "general.name", "(none)"));
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(file);
  if (config.ok()) {
    AddShape(*config, text);
  }
  AddTensorTypes(file, text);
  AddLine(text, "tokenizer",
          fmt::format("{}, pre-tokenizer {}, {} tokens",
                      StringOr(file, "tokenizer.ggml.model", "(none)"),
                      StringOr(file, "tokenizer.ggml.pre", "(none)"),
                      file.FindArrayCount("tokenizer.ggml.tokens").value_or(0)));
  AddLine(text, "chat_template", ChatFamily(file));
  report.runnable = CheckRuns(file, config);
  AddLine(text, "runs",
          report.runnable.ok() ? "yes" : fmt::format("no: {}", Message(report.runnable)));
  return report;
}

}  // namespace cairn::compute
