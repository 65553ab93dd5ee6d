// What Forward promises beyond its numbers (those are model_reference_test's): the same bits
// whatever the batch and the thread count, cancellation, and errors.
#include "compute-node/model/forward/forward.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute-node/model/forward/dense_attention.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/reference_forward.h"
#include "tests/unit/model/small_model.h"

namespace cairn::compute {
namespace {

using testing::HasSubstr;

std::string TinyModelPath(const std::string& preset, const std::string& type) {
  std::string path = testing::TempDir() + "/forward_test_" + preset + "_" + type + ".gguf";
  const absl::Status written = test::WriteModel({.preset = preset, .type = type, .seed = 5}, path);
  EXPECT_TRUE(written.ok()) << written;
  return path;
}

std::unique_ptr<Model> LoadModel(const std::string& path, int thread_count = 1,
                                 std::int64_t batch_tokens_max = 512) {
  ModelOptions options;
  options.thread_count = thread_count;
  options.batch_tokens_max = batch_tokens_max;
  auto model = Model::Load(path, options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Every token's logits, with the sequence cut into batches of the given sizes (the last one
// repeats).
std::vector<float> AllLogits(Model& model, const std::vector<std::int32_t>& tokens,
                             const std::vector<std::size_t>& batches,
                             KvFormat format = KvFormat::kF16) {
  DenseAttention attention(model.config(), format, static_cast<std::int64_t>(tokens.size()),
                           model.pool());
  std::vector<float> logits;
  std::size_t first = 0;
  for (std::size_t i = 0; first < tokens.size(); ++i) {
    const std::size_t count =
        std::min(batches[std::min(i, batches.size() - 1)], tokens.size() - first);
    ForwardOutput output;
    output.all_logits = [&](std::int64_t, std::span<const float> rows) {
      logits.insert(logits.end(), rows.begin(), rows.end());
      return absl::OkStatus();
    };
    const absl::Status status =
        model.Forward(std::span(tokens).subspan(first, count), static_cast<std::int64_t>(first),
                      attention, output, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    first += count;
  }
  return logits;
}

TEST(ForwardTest, TheBatchDoesNotChangeABit) {
  for (const std::string type : {"f32", "f16", "q8_0", "q4_0"}) {
    SCOPED_TRACE(type);
    const auto model = LoadModel(TinyModelPath("tiny-qwen2", type));
    ASSERT_NE(model, nullptr);
    const auto tokens = test::ReferencePrompt(165, model->config().vocab_size);
    const std::vector<float> together = AllLogits(*model, tokens, {165});
    EXPECT_EQ(AllLogits(*model, tokens, {1}), together);
    EXPECT_EQ(AllLogits(*model, tokens, {100, 1, 7, 3}), together);
  }
}

TEST(ForwardTest, TheThreadCountDoesNotChangeABit) {
  const std::string path = TinyModelPath("tiny-llama", "q8_0");
  const auto one = LoadModel(path, 1);
  const auto three = LoadModel(path, 3);
  const auto tokens = test::ReferencePrompt(70, one->config().vocab_size);
  EXPECT_EQ(AllLogits(*one, tokens, {33}), AllLogits(*three, tokens, {33}));
}

TEST(ForwardTest, LastLogitsAreTheLastOfAllLogits) {
  const auto model = LoadModel(TinyModelPath("tiny-llama", "f16"));
  const auto tokens = test::ReferencePrompt(40, model->config().vocab_size);
  const std::vector<float> all = AllLogits(*model, tokens, {40});
  DenseAttention attention(model->config(), KvFormat::kF16, 40, model->pool());
  std::vector<float> last(static_cast<std::size_t>(model->config().vocab_size));
  // The first part asks for nothing: its last layer is then cut short, which must not show.
  ASSERT_TRUE(model->Forward(std::span(tokens).first(25), 0, attention, {}, nullptr).ok());
  ASSERT_TRUE(
      model->Forward(std::span(tokens).subspan(25), 25, attention, {last, {}}, nullptr).ok());
  EXPECT_TRUE(std::equal(last.rbegin(), last.rend(), all.rbegin()));
}

TEST(ForwardTest, AFusedQkvTensorIsTheSameModel) {
  const std::string plain = testing::TempDir() + "/forward_test_plain.gguf";
  const std::string fused = testing::TempDir() + "/forward_test_fused.gguf";
  ASSERT_TRUE(SmallModel().Write(plain).ok());
  ASSERT_TRUE(SmallModel().Fused().Write(fused).ok());
  const std::vector<std::int32_t> tokens = {1, 36, 5, 9, 9, 2};
  EXPECT_EQ(AllLogits(*LoadModel(plain), tokens, {6}), AllLogits(*LoadModel(fused), tokens, {6}));
}

TEST(ForwardTest, RefusesTokensAndPositionsOutOfRange) {
  const auto model = LoadModel(TinyModelPath("tiny-llama", "f32"), 1, 16);
  DenseAttention attention(model->config(), KvFormat::kF16, 100, model->pool());
  const auto run = [&](const std::vector<std::int32_t>& tokens, std::int64_t position) {
    const absl::Status status = model->Forward(tokens, position, attention, {}, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  EXPECT_THAT(run({}, 0), HasSubstr("0 tokens"));
  EXPECT_THAT(run(std::vector<std::int32_t>(17, 1), 0), HasSubstr("17 tokens"));
  EXPECT_THAT(run({-1}, 0), HasSubstr("token -1"));
  EXPECT_THAT(run({static_cast<std::int32_t>(model->config().vocab_size)}, 0),
              HasSubstr("vocabulary"));
  EXPECT_THAT(run({1}, -1), HasSubstr("position -1"));
  EXPECT_THAT(run({1, 2}, model->config().context_length - 1), HasSubstr("context"));
  EXPECT_THAT(run({1}, 5), HasSubstr("0 tokens are held"));
}

// Raises the flag while a layer is attended.
class CancellingAttention : public KvAttention {
 public:
  explicit CancellingAttention(std::atomic<bool>& cancel) : cancel_(cancel) {}
  absl::Status Attend(const AttentionBatch&) override {
    layers_attended += 1;
    cancel_ = true;
    return absl::OkStatus();
  }
  int layers_attended = 0;

 private:
  std::atomic<bool>& cancel_;
};

TEST(ForwardTest, CancellationEndsItBetweenLayers) {
  const auto model = LoadModel(TinyModelPath("tiny-llama", "f32"));
  std::atomic<bool> cancel{false};
  CancellingAttention attention(cancel);
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  EXPECT_EQ(model->Forward(tokens, 0, attention, {}, &cancel).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(attention.layers_attended, 1);
}

class FailingAttention : public KvAttention {
 public:
  absl::Status Attend(const AttentionBatch&) override { return Unavailable("no KV node"); }
};

TEST(ForwardTest, TheAttentionsErrorIsTheAnswer) {
  const auto model = LoadModel(TinyModelPath("tiny-llama", "f32"));
  FailingAttention attention;
  const std::vector<std::int32_t> tokens = {1};
  EXPECT_EQ(model->Forward(tokens, 0, attention, {}, nullptr).code(),
            absl::StatusCode::kUnavailable);
}

// A sequence of its own, with its tokens and what a pass answers for it.
struct TestSequence {
  TestSequence(Model& model, std::vector<std::int32_t> some_tokens, bool wants_logits)
      : tokens(std::move(some_tokens)),
        attention(model.config(), KvFormat::kF16, 512, model.pool()),
        logits(wants_logits ? static_cast<std::size_t>(model.config().vocab_size) : 0) {}

  // Its next `count` tokens.
  SequencePass* Next(std::size_t count) {
    const std::int64_t position = attention.token_count();
    pass = {std::span(tokens).subspan(static_cast<std::size_t>(position), count),
            position,
            &attention,
            {logits, {}},
            nullptr,
            absl::OkStatus()};
    return &pass;
  }

  std::vector<std::int32_t> tokens;
  DenseAttention attention;
  std::vector<float> logits;
  SequencePass pass;
};

TEST(ForwardTest, SequencesInOnePassGetTheBitsThatTheyGetApart) {
  const auto model = LoadModel(TinyModelPath("tiny-qwen2", "q4_0"), 2);
  std::vector<std::unique_ptr<TestSequence>> together;
  std::vector<std::unique_ptr<TestSequence>> apart;
  for (std::int32_t i = 0; i < 5; ++i) {
    auto tokens = test::ReferencePrompt(60, model->config().vocab_size);
    std::rotate(tokens.begin(), tokens.begin() + i, tokens.end());
    // One only fills its cache.
    together.push_back(std::make_unique<TestSequence>(*model, tokens, i != 2));
    apart.push_back(std::make_unique<TestSequence>(*model, tokens, i != 2));
  }
  // Prompts of different lengths beside steps.
  const std::size_t counts[][5] = {{40, 1, 7, 3, 20}, {1, 1, 1, 1, 1}, {1, 30, 1, 1, 9}};
  for (const auto& round : counts) {
    std::vector<SequencePass*> passes;
    for (std::size_t i = 0; i < 5; ++i) {
      passes.push_back(together[i]->Next(round[i]));
      SequencePass* const alone[] = {apart[i]->Next(round[i])};
      model->Forward(alone, nullptr);
      ASSERT_TRUE(alone[0]->status.ok()) << alone[0]->status;
    }
    model->Forward(passes, nullptr);
    for (std::size_t i = 0; i < 5; ++i) {
      ASSERT_TRUE(passes[i]->status.ok()) << passes[i]->status;
      EXPECT_EQ(together[i]->logits, apart[i]->logits) << i;
    }
  }
}

// Keeps what it is told of the queries to come.
class ForeseeingAttention : public DenseAttention {
 public:
  using DenseAttention::DenseAttention;
  Forecast WantedForecast(int) const override { return wanted; }
  void Predict(int layer, std::span<const float> queries) override {
    foreseen.emplace_back(layer, std::vector<float>(queries.begin(), queries.end()));
  }

  Forecast wanted = Forecast::kQueries;
  std::vector<std::pair<int, std::vector<float>>> foreseen;
};

using Foreseen = std::vector<std::pair<int, std::vector<float>>>;

// What a sequence of three steps is told; beside others whose steps want `other_wants` if that is
// set.
Foreseen ForeseenOf(Model& model, Forecast wanted, std::optional<Forecast> other_wants) {
  const auto tokens = test::ReferencePrompt(260, model.config().vocab_size);
  ForeseeingAttention attention(model.config(), KvFormat::kF16, 64, model.pool());
  ForeseeingAttention other_attention(model.config(), KvFormat::kF16, 64, model.pool());
  attention.wanted = wanted;
  other_attention.wanted = other_wants.value_or(Forecast::kNone);
  TestSequence prompt(model, tokens, true);
  const std::vector<std::int32_t> other_tokens(tokens.rbegin(), tokens.rend());
  constexpr std::size_t kPromptCounts[] = {150, 80, 20};
  for (std::int64_t position = 0; position < 3; ++position) {
    SequencePass other;
    other.tokens = std::span(other_tokens).subspan(static_cast<std::size_t>(position), 1);
    other.first_position = position;
    other.attention = &other_attention;
    SequencePass step;
    step.tokens = std::span(tokens).subspan(static_cast<std::size_t>(position), 1);
    step.first_position = position;
    step.attention = &attention;
    std::vector<SequencePass*> passes;
    // First more tokens than are computed at a time, so that the step is in neither the first
    // piece nor at the start of one.
    if (other_wants) passes = {prompt.Next(kPromptCounts[position]), &other};
    passes.push_back(&step);
    model.Forward(passes, nullptr);
    EXPECT_TRUE(step.status.ok()) << step.status;
  }
  return attention.foreseen;
}

TEST(ForwardTest, ForecastsAreThoseThatASequenceGetsAlone) {
  const auto model = LoadModel(TinyModelPath("tiny-qwen2", "q4_0"), 2);
  for (const Forecast wanted : {Forecast::kQueries, Forecast::kQuerySums}) {
    const Foreseen alone = ForeseenOf(*model, wanted, std::nullopt);
    ASSERT_EQ(std::ssize(alone), 3 * (model->config().layer_count - 1));
    EXPECT_EQ(alone.front().first, 1);
    for (const Forecast other : {Forecast::kNone, Forecast::kQueries, Forecast::kQuerySums}) {
      EXPECT_EQ(ForeseenOf(*model, wanted, other), alone);
    }
  }
}

TEST(ForwardTest, ForeseenSumsAreThoseOfTheForeseenQueries) {
  for (const auto& [name, type, error_max] :
       {std::tuple("tiny-qwen2", "q4_0", 1e-2), std::tuple("tiny-llama", "q8_0", 1e-2),
        std::tuple("tiny-llama", "f32", 1e-3)}) {
    const auto model = LoadModel(TinyModelPath(name, type), 2);
    const ModelConfig& config = model->config();
    ASSERT_GT(config.group_size(), 1) << name;
    const Foreseen queries = ForeseenOf(*model, Forecast::kQueries, std::nullopt);
    const Foreseen sums = ForeseenOf(*model, Forecast::kQuerySums, std::nullopt);
    ASSERT_EQ(queries.size(), sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(std::ssize(queries[i].second), config.query_length());
      ASSERT_EQ(std::ssize(sums[i].second), config.kv_length());
      std::vector<double> expected(sums[i].second.size(), 0.0);
      for (std::int64_t j = 0; j < config.query_length(); ++j) {
        const std::int64_t head = j / config.head_dim / config.group_size();
        expected[static_cast<std::size_t>(head * config.head_dim + j % config.head_dim)] +=
            static_cast<double>(queries[i].second[static_cast<std::size_t>(j)]);
      }
      EXPECT_LT(test::RelativeDistance(sums[i].second, expected), error_max) << name << " " << type;
    }
  }
}

TEST(ForwardTest, ASequenceThatFailsDoesNotDisturbTheOthers) {
  const auto model = LoadModel(TinyModelPath("tiny-llama", "q8_0"));
  const auto tokens = test::ReferencePrompt(30, model->config().vocab_size);
  TestSequence good(*model, tokens, true);
  TestSequence alone(*model, tokens, true);
  TestSequence failing(*model, tokens, true);
  TestSequence invalid(*model, {-1}, true);
  TestSequence cancelled(*model, tokens, true);
  FailingAttention no_node;
  failing.Next(9)->attention = &no_node;
  const std::atomic<bool> cancel{true};
  cancelled.Next(5)->cancel = &cancel;
  SequencePass* const passes[] = {&failing.pass, invalid.Next(1), good.Next(30), &cancelled.pass};
  model->Forward(passes, nullptr);
  EXPECT_EQ(failing.pass.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(invalid.pass.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cancelled.pass.status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(good.pass.status.ok()) << good.pass.status;
  SequencePass* const only[] = {alone.Next(30)};
  model->Forward(only, nullptr);
  EXPECT_EQ(good.logits, alone.logits);
  EXPECT_EQ(failing.attention.token_count(), 0);
}

TEST(ForwardTest, StepsRunWithinALongPassWithoutChangingIt) {
  const auto model = LoadModel(TinyModelPath("tiny-llama", "q4_0"), 2);
  const auto tokens = test::ReferencePrompt(300, model->config().vocab_size);
  TestSequence undisturbed(*model, tokens, true);
  SequencePass* const first[] = {undisturbed.Next(300)};
  model->Forward(first, nullptr);

  TestSequence prompt(*model, tokens, true);
  TestSequence steps(*model, tokens, true);
  int step_count = 0;
  SequencePass* const second[] = {prompt.Next(300)};
  model->Forward(second, [&] {
    SequencePass* const step[] = {steps.Next(1)};
    model->Forward(step, [] { FAIL() << "a step is not interrupted"; });
    ASSERT_TRUE(step[0]->status.ok()) << step[0]->status;
    ++step_count;
  });
  EXPECT_EQ(prompt.logits, undisturbed.logits);
  // Three pieces of 300 tokens before the attention of each layer, and three behind it but for the
  // last layer, of which one token is wanted.
  EXPECT_EQ(step_count, model->config().layer_count * 6 - 2);
  TestSequence alone(*model, tokens, true);
  SequencePass* const again[] = {alone.Next(static_cast<std::size_t>(step_count))};
  model->Forward(again, nullptr);
  EXPECT_EQ(steps.logits, alone.logits);
}

TEST(ForwardTest, LoadRefusesImpossibleOptions) {
  const std::string path = TinyModelPath("tiny-llama", "f32");
  ModelOptions options;
  options.thread_count = 0;
  EXPECT_THAT(Message(Model::Load(path, options).status()), HasSubstr("thread_count"));
  options.thread_count = 1;
  options.batch_tokens_max = kBatchTokensMax + 1;
  EXPECT_THAT(Message(Model::Load(path, options).status()), HasSubstr("batch_tokens_max"));
}

TEST(ForwardTest, LoadReportsProgressUpToTheTotal) {
  ModelOptions options;
  std::int64_t last = 0;
  std::int64_t total = -1;
  options.progress = [&](std::int64_t done_bytes, std::int64_t total_bytes) {
    EXPECT_GT(done_bytes, last);
    last = done_bytes;
    total = total_bytes;
  };
  ASSERT_TRUE(Model::Load(TinyModelPath("tiny-llama", "f32"), options).ok());
  EXPECT_EQ(last, total);
}

TEST(DenseAttentionTest, TruncateGoesBackToAnEarlierToken) {
  const auto model = LoadModel(TinyModelPath("tiny-llama3", "f16"));
  const auto tokens = test::ReferencePrompt(50, model->config().vocab_size);
  DenseAttention attention(model->config(), KvFormat::kF16, 50, model->pool());
  std::vector<float> first(static_cast<std::size_t>(model->config().vocab_size));
  std::vector<float> again = first;
  ASSERT_TRUE(model->Forward(tokens, 0, attention, {first, {}}, nullptr).ok());
  EXPECT_EQ(attention.token_count(), 50);
  attention.Truncate(20);
  ASSERT_TRUE(
      model->Forward(std::span(tokens).subspan(20), 20, attention, {again, {}}, nullptr).ok());
  EXPECT_EQ(first, again);
  const std::vector<std::int32_t> more = {1};
  EXPECT_EQ(model->Forward(more, 50, attention, {}, nullptr).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cairn::compute
