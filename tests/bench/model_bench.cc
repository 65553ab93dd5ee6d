// Speed of a model by itself: tokens a second of decoding and of prefill at several depths of
// context, with all keys and values in memory as f16. The context is filled with keys and values
// that nothing computed, so that a depth of 16384 takes a moment: speed does not depend on them.
//
// usage: model_bench MODEL.gguf [--depths 128,4096,16384] [--threads 2] [--steps 24] [--chunk 128]
//                    [--sequences 1] [--packed DIRECTORY]
// Prints a line for each depth: depth, decode tokens/s of all sequences together (from the median
// of --steps steps), prefill tokens/s of one (the median of 3 chunks, from depth 0 for the first
// line).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

struct BenchOptions {
  std::string model;
  std::vector<std::int64_t> depths = {128, 4096, 16384};
  int threads = 2;
  int steps = 24;
  std::int64_t chunk = 128;
  int sequences = 1;
  std::string packed_directory;
};

// nullopt: not as the usage says.
std::optional<BenchOptions> ParseBenchOptions(int argc, char** argv) {
  BenchOptions options;
  if (argc < 2 || argc % 2 != 0) return std::nullopt;
  options.model = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--threads") {
      options.threads = std::atoi(value);
    } else if (name == "--steps") {
      options.steps = std::atoi(value);
    } else if (name == "--packed") {
      options.packed_directory = value;
    } else if (name == "--sequences") {
      options.sequences = std::atoi(value);
    } else if (name == "--chunk") {
      options.chunk = std::atoll(value);
    } else if (name == "--depths") {
      options.depths.clear();
      for (char* at = const_cast<char*>(value); *at != '\0'; at += *at == ',' ? 1 : 0) {
        const char* const number = at;
        options.depths.push_back(std::strtoll(at, &at, 10));
        if (at == number) return std::nullopt;
      }
    } else {
      return std::nullopt;
    }
  }
  if (options.threads < 1 || options.steps < 1 || options.chunk < 1 || options.sequences < 1) {
    return std::nullopt;
  }
  return options;
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Brings the sequence to `depth` tokens.
void Fill(const ModelConfig& config, DenseAttention& attention, std::int64_t depth) {
  constexpr std::int64_t kTokens = 128;
  std::vector<float> rows(static_cast<std::size_t>(kTokens * config.kv_length()));
  test::Rng rng(1);
  for (float& value : rows) {
    value = static_cast<float>(static_cast<std::int64_t>(rng.Next() % 2001) - 1000) * 0.001F;
  }
  for (std::int64_t first = attention.token_count(); first < depth; first += kTokens) {
    const std::int64_t count = std::min(kTokens, depth - first);
    const std::span<const float> some(rows.data(),
                                      static_cast<std::size_t>(count * config.kv_length()));
    for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
      const AttentionBatch batch{static_cast<int>(layer), first, count, {}, some, some, {}};
      CAIRN_CHECK(attention.Store(batch).ok());
    }
  }
}

class ModelBench {
 public:
  ModelBench(const BenchOptions& options, std::unique_ptr<Model> model)
      : options_(options),
        model_(std::move(model)),
        logits_(static_cast<std::size_t>(model_->config().vocab_size)) {}

  void Run() {
    const std::int64_t deepest = *std::max_element(options_.depths.begin(), options_.depths.end());
    std::deque<DenseAttention> sequences;
    for (int i = 0; i < options_.sequences; ++i) {
      sequences.emplace_back(model_->config(), KvFormat::kF16, deepest + options_.chunk,
                             model_->pool());
    }
    std::printf("depth,decode_tokens_per_s,prefill_tokens_per_s\n");
    bool first = true;
    for (const std::int64_t depth : options_.depths) {
      // The first line's prefill begins with an empty context.
      const double prefill = Prefill(sequences.front(), first ? 0 : depth);
      first = false;
      for (DenseAttention& attention : sequences) Fill(model_->config(), attention, depth);
      const double decode = Decode(sequences, depth);
      std::printf("%lld,%.2f,%.1f\n", static_cast<long long>(depth), decode, prefill);
      std::fflush(stdout);
    }
  }

 private:
  // Seconds for one pass of `tokens` at `depth`; the context is as before afterwards.
  double Pass(DenseAttention& attention, std::int64_t depth, std::span<const std::int32_t> tokens) {
    const auto begin = std::chrono::steady_clock::now();
    ForwardOutput output;
    output.last_logits = logits_;
    CAIRN_CHECK(model_->Forward(tokens, depth, attention, output, nullptr).ok());
    const double seconds = SecondsSince(begin);
    attention.Truncate(depth);
    return seconds;
  }

  double Prefill(DenseAttention& attention, std::int64_t depth) {
    Fill(model_->config(), attention, depth);
    std::vector<std::int32_t> tokens;
    tokens.reserve(static_cast<std::size_t>(options_.chunk));
    for (std::int64_t i = 0; i < options_.chunk; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * 7 % model_->config().vocab_size));
    }
    std::vector<double> rates;
    rates.reserve(3);
    for (int i = 0; i < 3; ++i) {
      rates.push_back(static_cast<double>(options_.chunk) / Pass(attention, depth, tokens));
    }
    return MedianOf(rates);
  }

  // One token of every sequence in a pass.
  double Decode(std::deque<DenseAttention>& sequences, std::int64_t depth) {
    std::vector<std::vector<float>> logits(sequences.size(), logits_);
    std::vector<double> rates;
    rates.reserve(static_cast<std::size_t>(options_.steps));
    for (std::int32_t i = 0; i < options_.steps; ++i) {
      std::deque<SequencePass> passes;
      std::vector<SequencePass*> pointers;
      pointers.reserve(sequences.size());
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        passes.push_back(
            {{&i, 1}, depth, &sequences[s], {logits[s], {}}, nullptr, absl::OkStatus()});
        pointers.push_back(&passes.back());
      }
      const auto begin = std::chrono::steady_clock::now();
      model_->Forward(pointers, nullptr);
      rates.push_back(static_cast<double>(sequences.size()) / SecondsSince(begin));
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        CAIRN_CHECK(passes[s].status.ok());
        sequences[s].Truncate(depth);
      }
    }
    return MedianOf(rates);
  }

  const BenchOptions options_;
  const std::unique_ptr<Model> model_;
  std::vector<float> logits_;
};

absl::Status RunBench(const BenchOptions& options) {
  ModelOptions model_options;
  model_options.thread_count = options.threads;
  model_options.batch_tokens_max = std::max<std::int64_t>(options.chunk, options.sequences);
  model_options.packed_directory = options.packed_directory;
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(options.model, model_options));
  std::fprintf(stderr, "loaded in %.3f s\n", SecondsSince(begin));
  ModelBench(options, std::move(model)).Run();
  return absl::OkStatus();
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  const auto options = cairn::compute::ParseBenchOptions(argc, argv);
  if (!options.has_value()) {
    std::fprintf(stderr,
                 "usage: model_bench MODEL.gguf [--depths 128,4096,16384] [--threads 2] "
                 "[--steps 24] [--chunk 128] [--sequences 1] [--packed DIRECTORY]\n");
    return 2;
  }
  const absl::Status status = cairn::compute::RunBench(*options);
  if (!status.ok()) std::fprintf(stderr, "model_bench: %s\n", cairn::Message(status).c_str());
  return status.ok() ? 0 : 1;
}
