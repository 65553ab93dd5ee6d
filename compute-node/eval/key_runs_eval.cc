#include "compute-node/eval/key_runs_eval.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "compute-node/eval/coded_keys.h"
#include "compute-node/model/forward/dense_attention.h"

namespace cairn::eval {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Tokens whose logits are in memory at a time, for each way to compute them.
constexpr std::size_t kPassTokens = 128;
// An index of 4 bits names the keys of a cluster that is capped at twice this.
constexpr std::int64_t kClusterEntriesMax = 8;

absl::Status Check(const KeyRunsOptions& options, std::int64_t token_count,
                   const compute::ModelConfig& config) {
  for (const double tolerance : options.tolerances) {
    if (!(tolerance > 0) || !std::isfinite(static_cast<float>(tolerance))) {
      return InvalidArgument("--key-runs {}: a tolerance must be a number above 0", tolerance);
    }
  }
  if (options.cluster_entries < 1 || options.cluster_entries > kClusterEntriesMax) {
    return InvalidArgument("--cluster-entries {}: with --key-runs it must be 1 to {}",
                           options.cluster_entries, kClusterEntriesMax);
  }
  if (token_count < 2 || token_count > config.context_length) {
    return InvalidArgument("key runs: the text has {} tokens; it must have 2 to {}", token_count,
                           config.context_length);
  }
  return absl::OkStatus();
}

// The text with the keys that a code gives back.
class Run {
 public:
  Run(compute::Model& model, std::int64_t token_count, KvFormat format, bool keeps_rotated = false)
      : model_(model),
        attention_(model.config(), format, token_count, model.pool()),
        keys_(attention_, model.config(), model.rotary_angles(), format, keeps_rotated) {}

  absl::Status Add(std::span<const std::int32_t> tokens, std::int64_t first_position) {
    logits_.clear();
    compute::ForwardOutput output;
    output.all_logits = [this](std::int64_t, std::span<const float> logits) {
      logits_.insert(logits_.end(), logits.begin(), logits.end());
      return absl::OkStatus();
    };
    return model_.Forward(tokens, first_position, keys_, output, nullptr);
  }

  // Behind the token of that number of the last Add.
  std::span<const float> logits(std::size_t token) const {
    const auto count = static_cast<std::size_t>(model_.config().vocab_size);
    return std::span(logits_).subspan(token * count, count);
  }
  CodedKeys& keys() { return keys_; }

 private:
  compute::Model& model_;
  compute::DenseAttention attention_;
  CodedKeys keys_;
  std::vector<float> logits_;
};

// The keys of a run, and the codes of them.
class Coder {
 public:
  Coder(const CodedKeys& keys, const compute::ModelConfig& config, const KeyRunsOptions& options)
      : keys_(keys), config_(config), options_(options) {
    kmeans_.target_entries = options.cluster_entries;
    kmeans_.entries_max = 2 * options.cluster_entries;
    for (std::size_t head = 0; head < head_count(); ++head) {
      clusters_.push_back(compute::KMeans(keys.rotated_keys(head), config.head_dim, kmeans_));
      key_clusters_.push_back(compute::KMeans(keys.keys(head), config.head_dim, kmeans_));
    }
  }

  std::vector<double> MedianSteps() const {
    std::vector<double> steps(static_cast<std::size_t>(config_.layer_count));
    for (std::size_t head = 0; head < head_count(); ++head) {
      steps[LayerOf(head)] += MedianStep(keys_.keys(head), config_.head_dim) /
                              static_cast<double>(config_.kv_head_count);
    }
    return steps;
  }
  std::int64_t LayerBytes() const { return config_.kv_head_count * HeadBytes(); }

  // Fills what the code saves, and answers what stands for what.
  std::vector<KeyStandIns> Code(KeyCodeResult& result) const {
    result.layers.resize(static_cast<std::size_t>(config_.layer_count));
    std::vector<KeyStandIns> all;
    all.reserve(head_count());
    for (std::size_t head = 0; head < head_count(); ++head) {
      KeyStandIns stand_ins = StandIns(result.code, head);
      LayerRuns& layer = result.layers[LayerOf(head)];
      const KeyRuns runs = CountRuns(stand_ins);
      const std::int64_t bytes =
          CodedBytes(runs, key_bytes(),
                     result.code.place == RunPlace::kOrder ? kOrderIndexBits : kClusterIndexBits);
      layer.runs += runs;
      // A byte more says which of both it is.
      layer.bytes += std::min(bytes, HeadBytes()) + 1;
      if (bytes >= HeadBytes()) std::iota(stand_ins.begin(), stand_ins.end(), 0);
      all.push_back(std::move(stand_ins));
    }
    return all;
  }

 private:
  std::size_t head_count() const { return keys_.HeadIndex(config_.layer_count, 0); }
  std::size_t LayerOf(std::size_t head) const {
    return head / static_cast<std::size_t>(config_.kv_head_count);
  }
  std::int64_t key_bytes() const { return KvKeyBytes(options_.kv_format, config_.head_dim); }
  std::int64_t HeadBytes() const {
    return std::ssize(keys_.keys(0)) / config_.head_dim * key_bytes();
  }
  KeyStandIns StandIns(const KeyCode& code, std::size_t head) const {
    const std::span<const float> keys = keys_.keys(head);
    const auto tolerance = static_cast<float>(code.tolerance);
    if (code.place == RunPlace::kOrder) return RunsInOrder(keys, config_.head_dim, tolerance);
    const bool rotated = code.place == RunPlace::kClusters;
    return RunsInClusters(keys, config_.head_dim, tolerance,
                          rotated ? clusters_[head] : key_clusters_[head]);
  }

  const CodedKeys& keys_;
  const compute::ModelConfig& config_;
  const KeyRunsOptions& options_;
  compute::KMeansOptions kmeans_;
  std::vector<compute::PointClusters> clusters_;
  std::vector<compute::PointClusters> key_clusters_;
};

// Runs the text plain and with each code, side by side.
absl::Status Compare(compute::Model& model, std::span<const std::int32_t> tokens,
                     const Coder& coder, KvFormat format, const KeyRunsProgress& progress,
                     std::vector<KeyCodeResult>& codes) {
  Run plain(model, std::ssize(tokens), format);
  std::vector<std::unique_ptr<Run>> runs;
  runs.reserve(codes.size());
  for (KeyCodeResult& code : codes) {
    runs.push_back(std::make_unique<Run>(model, std::ssize(tokens), format));
    runs.back()->keys().Code(coder.Code(code));
  }
  for (std::size_t first = 0; first < tokens.size(); first += kPassTokens) {
    const auto some = tokens.subspan(first, std::min(kPassTokens, tokens.size() - first));
    CAIRN_RETURN_IF_ERROR(plain.Add(some, static_cast<std::int64_t>(first)));
    for (std::size_t i = 0; i < runs.size(); ++i) {
      CAIRN_RETURN_IF_ERROR(runs[i]->Add(some, static_cast<std::int64_t>(first)));
      for (std::size_t token = 0; token < some.size(); ++token) {
        codes[i].divergence.Add(plain.logits(token), runs[i]->logits(token));
      }
    }
    if (progress) progress(static_cast<std::int64_t>(first + some.size()), std::ssize(tokens));
  }
  return absl::OkStatus();
}

// The byte of a gate that saved nothing shows as nothing.
double PercentLess(std::int64_t bytes, std::int64_t plain_bytes) {
  const double tenths = 1000 * (1 - static_cast<double>(bytes) / static_cast<double>(plain_bytes));
  return std::round(tenths) / 10 + 0.0;
}

OrderedJson CodeJson(const KeyCodeResult& result) {
  OrderedJson json = {{"place", RunPlaceName(result.code.place)},
                      {"tolerance", result.code.tolerance},
                      {"layers", OrderedJson::array()}};
  for (const LayerRuns& layer : result.layers) {
    OrderedJson by_length = OrderedJson::object();
    for (std::size_t i = 0; i < layer.runs.by_length.size(); ++i) {
      by_length[std::string(kRunLengthNames[i])] = layer.runs.by_length[i];
    }
    json["layers"].push_back({{"keys", layer.runs.key_count},
                              {"stored", layer.runs.stored_count},
                              {"bytes", layer.bytes},
                              {"runs", std::move(by_length)}});
  }
  json["kl"] = {{"mean", result.divergence.mean()},
                {"p99", result.divergence.Quantile(0.99)},
                {"max", result.divergence.max()}};
  json["same_best"] = result.divergence.same_best();
  return json;
}

}  // namespace

std::string_view RunPlaceName(RunPlace place) {
  switch (place) {
    case RunPlace::kOrder:
      return "order";
    case RunPlace::kClusters:
      return "clusters";
    case RunPlace::kKeyClusters:
      return "key-clusters";
  }
  return "";
}

absl::StatusOr<KeyRunsResult> MeasureKeyRuns(compute::Model& model,
                                             std::span<const std::int32_t> tokens,
                                             const KeyRunsOptions& options,
                                             const KeyRunsProgress& progress) {
  CAIRN_RETURN_IF_ERROR(Check(options, std::ssize(tokens), model.config()));
  Run first(model, std::ssize(tokens), options.kv_format, /*keeps_rotated=*/true);
  for (std::size_t at = 0; at < tokens.size(); at += kPassTokens) {
    const auto some = tokens.subspan(at, std::min(kPassTokens, tokens.size() - at));
    CAIRN_RETURN_IF_ERROR(first.Add(some, static_cast<std::int64_t>(at)));
  }
  const Coder coder(first.keys(), model.config(), options);
  KeyRunsResult result;
  result.median_steps = coder.MedianSteps();
  result.layer_bytes = coder.LayerBytes();
  for (const RunPlace place : kRunPlaces) {
    for (const double tolerance : options.tolerances) {
      result.codes.emplace_back().code = {.place = place, .tolerance = tolerance};
    }
  }
  CAIRN_RETURN_IF_ERROR(Compare(model, tokens, coder, options.kv_format, progress, result.codes));
  return result;
}

std::string Table(const KeyRunsResult& result) {
  std::string text =
      fmt::format("{:<14}{:>9}{:>9}{:>11}{:>8}", "in", "within", "KL mean", "same best", "all");
  for (std::size_t layer = 0; layer < result.median_steps.size(); ++layer) {
    fmt::format_to(std::back_inserter(text), "{:>7}", layer);
  }
  text += "\n";
  const auto layer_count = static_cast<std::int64_t>(result.median_steps.size());
  for (const KeyCodeResult& code : result.codes) {
    std::int64_t bytes = 0;
    for (const LayerRuns& layer : code.layers) bytes += layer.bytes;
    fmt::format_to(std::back_inserter(text), "{:<14}{:>9}{:>9.5f}{:>11.4f}{:>8.1f}",
                   RunPlaceName(code.code.place), code.code.tolerance, code.divergence.mean(),
                   code.divergence.same_best(),
                   PercentLess(bytes, layer_count * result.layer_bytes));
    for (const LayerRuns& layer : code.layers) {
      fmt::format_to(std::back_inserter(text), "{:>7.1f}",
                     PercentLess(layer.bytes, result.layer_bytes));
    }
    text += "\n";
  }
  text += fmt::format("{:<51}", "median step between neighbours");
  for (const double step : result.median_steps) {
    fmt::format_to(std::back_inserter(text), "{:>7.2f}", step);
  }
  return text + "\nOf all keys and of those of each layer: by how many % fewer bytes.\n";
}

OrderedJson ToJson(const KeyRunsResult& result) {
  OrderedJson json = {{"layer_bytes", result.layer_bytes},
                      {"median_steps", result.median_steps},
                      {"codes", OrderedJson::array()}};
  for (const KeyCodeResult& code : result.codes) json["codes"].push_back(CodeJson(code));
  return json;
}

}  // namespace cairn::eval
