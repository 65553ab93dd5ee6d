// Loads a tiny model with random weights and opens conversations of it over a FakeKvNode.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/session/conversation.h"
#include "compute-node/session/generation.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/test_threads.h"
#include "tests/unit/session/fake_kv_node.h"

namespace cairn::compute {

inline std::uint64_t TestSeed() {
  const char* seed = std::getenv("CAIRN_TEST_SEED");  // NOLINT(concurrency-mt-unsafe): one thread
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device()();
}

inline test::ModelOptions ModelFile(const std::string& preset) {
  test::ModelOptions options;
  options.preset = preset;
  return options;
}

// A model of a preset, loaded once a process for passes of `batch_tokens_max` tokens.
inline Model& TestModel(const std::string& preset, std::int64_t batch_tokens_max = 512) {
  static std::map<std::pair<std::string, std::int64_t>, std::unique_ptr<Model>> models;
  std::unique_ptr<Model>& model = models[{preset, batch_tokens_max}];
  if (model == nullptr) {
    const std::string path =
        testing::TempDir() + fmt::format("cairn_session_{}_{}.gguf", ::getpid(), preset);
    const absl::Status written = test::WriteModel(ModelFile(preset), path);
    EXPECT_TRUE(written.ok()) << Message(written);
    ModelOptions options;
    options.thread_count = test::kThreads;
    options.batch_tokens_max = batch_tokens_max;
    absl::StatusOr<std::unique_ptr<Model>> loaded = Model::Load(path, options);
    EXPECT_TRUE(loaded.ok()) << Message(loaded.status());
    model = std::move(loaded).value();
    ::unlink(path.c_str());
  }
  return *model;
}

class ConversationFixture : public testing::Test {
 protected:
  explicit ConversationFixture(const std::string& preset = "narrow-llama")
      : seed(TestSeed()),
        model(TestModel(preset)),
        scheduler(model, 512),
        node(seed),
        prompt_random(7) {
    RecordProperty("seed", std::to_string(seed));
    options.prefill_chunk_tokens = 100;
    identity.key.model_digest = std::string(32, 'm');
    identity.key.rope_parameters = "test";
    UseFormat(KvFormat::kF16);
  }
  void TearDown() override {
    if (HasFailure()) fmt::print("repeat with CAIRN_TEST_SEED={}\n", seed);
  }

  void UseFormat(KvFormat format) {
    options.kv_format = format;
    identity.key.kv_format = format;
    identity.layout = {.layer_count = static_cast<std::int32_t>(model.config().layer_count),
                       .head_count = static_cast<std::int32_t>(model.config().kv_head_count),
                       .head_dim = static_cast<std::int32_t>(model.config().head_dim),
                       .kv_format = format};
  }

  ConversationDeps deps() { return {served, node, scheduler, options, memory}; }

  SessionId Create() {
    CreateSession request;
    request.key = identity.key;
    request.layout = identity.layout;
    return node.Create(request)->id;
  }
  std::unique_ptr<Conversation> Open(SessionId id) {
    absl::StatusOr<std::unique_ptr<Conversation>> opened = Conversation::Open(deps(), {id});
    EXPECT_TRUE(opened.ok()) << Message(opened.status());
    return opened.ok() ? std::move(opened).value() : nullptr;
  }

  std::vector<std::int32_t> Prompt(std::int64_t count) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<std::int32_t>(
          3 + prompt_random() % static_cast<std::uint64_t>(model.config().vocab_size - 3)));
    }
    return tokens;
  }
  std::vector<float> Logits() const {
    return std::vector<float>(static_cast<std::size_t>(model.config().vocab_size));
  }
  static std::int32_t Best(const std::vector<float>& logits) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
  }

  // Greedy tokens after `prompt`, on a conversation.
  std::vector<std::int32_t> Continue(Conversation& conversation,
                                     const std::vector<std::int32_t>& prompt, int count) {
    std::vector<float> logits = Logits();
    absl::Status status = conversation.Prefill(prompt, logits, never, nullptr);
    EXPECT_TRUE(status.ok()) << Message(status);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < count && status.ok(); ++i) {
      tokens.push_back(Best(logits));
      status = conversation.Step(tokens.back(), logits, never);
      EXPECT_TRUE(status.ok()) << Message(status);
    }
    status = conversation.Checkpoint(never);
    EXPECT_TRUE(status.ok()) << Message(status);
    return tokens;
  }

  // The same with all keys and values in memory; `each` sees every logits vector.
  std::vector<std::int32_t> DenseContinue(
      const std::vector<std::int32_t>& prompt, int count,
      const std::function<void(const std::vector<float>&)>& each = nullptr) {
    DenseAttention attention(model.config(), options.kv_format, 4096, model.pool());
    std::vector<float> logits = Logits();
    ForwardOutput output;
    output.last_logits = logits;
    std::int64_t position = 0;
    while (position < std::ssize(prompt)) {
      const std::int64_t size = std::min<std::int64_t>(512, std::ssize(prompt) - position);
      EXPECT_TRUE(model
                      .Forward(std::span(prompt).subspan(static_cast<std::size_t>(position),
                                                         static_cast<std::size_t>(size)),
                               position, attention, output, nullptr)
                      .ok());
      position += size;
    }
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      if (each) each(logits);
      tokens.push_back(Best(logits));
      EXPECT_TRUE(
          model.Forward(std::span(&tokens.back(), 1), position++, attention, output, nullptr).ok());
    }
    return tokens;
  }

  const std::uint64_t seed;
  Model& model;
  ServedModel served;
  ModelIdentity& identity = served.base;
  SessionOptions options;
  ForwardScheduler scheduler;
  KvMemory memory;
  FakeKvNode node;
  StopSignal never;
  std::mt19937_64 prompt_random;
};

}  // namespace cairn::compute
