// Hyper-parameters: what is read, and which files are refused with which words.
#include "compute-node/model/config.h"

#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/gguf_writer.h"

namespace cairn::compute {
namespace {

using testing::HasSubstr;

// The metadata of a small model, with changes.
class MetadataBuilder {
 public:
  explicit MetadataBuilder(const std::string& architecture = "llama")
      : architecture_(architecture) {
    Count("block_count", 2).Count("context_length", 128).Count("embedding_length", 64);
    Count("feed_forward_length", 96)
        .Count("attention.head_count", 4)
        .Count("attention.head_count_kv", 2);
    Number("attention.layer_norm_rms_epsilon", 1e-5F);
  }
  MetadataBuilder& Count(const std::string& key, std::uint32_t value) {
    return Set(
        key, [=, name = architecture_ + "." + key](test::GgufWriter& w) { w.AddU32(name, value); });
  }
  MetadataBuilder& Number(const std::string& key, float value) {
    return Set(
        key, [=, name = architecture_ + "." + key](test::GgufWriter& w) { w.AddF32(name, value); });
  }
  MetadataBuilder& Text(const std::string& key, const std::string& value) {
    return Set(key, [=, name = architecture_ + "." + key](test::GgufWriter& w) {
      w.AddString(name, value);
    });
  }
  MetadataBuilder& Counts(const std::string& key, const std::vector<std::int32_t>& values) {
    return Set(key, [=, name = architecture_ + "." + key](test::GgufWriter& w) {
      w.AddI32Array(name, values);
    });
  }
  MetadataBuilder& Flag(const std::string& key, bool value) {
    return Set(key, [=, name = architecture_ + "." + key](test::GgufWriter& w) {
      w.AddBool(name, value);
    });
  }
  MetadataBuilder& Tokens(std::size_t count) {
    return Set("tokens", [=](test::GgufWriter& w) {
      w.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>(count, "t"));
    });
  }
  MetadataBuilder& Without(const std::string& key) {
    entries_.erase(key);
    return *this;
  }

  absl::StatusOr<ModelConfig> Read() const {
    ModelConfigReport report = Report();
    if (!report.problems.empty()) return report.problems.front();
    return report.config;
  }

  ModelConfigReport Report() const {
    test::GgufWriter writer;
    writer.AddString("general.architecture", architecture_);
    for (const auto& [key, add] : entries_) {
      add(writer);
    }
    writer.AddTensor(
        "token_embd.weight", {64, 10}, test::TensorType::kF32,
        [](std::int64_t, std::span<float> row) { std::fill(row.begin(), row.end(), 0.0F); });
    const std::string bytes = writer.ToString();
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(file.ok()) << file.status();
    ModelConfigReport report = ReportModelConfig(**file);
    EXPECT_EQ(ReadModelConfig(**file).ok(), report.problems.empty());
    return report;
  }

  void ExpectRefused(absl::StatusCode code, const std::string& reason) const {
    const auto config = Read();
    ASSERT_FALSE(config.ok()) << reason;
    EXPECT_EQ(config.status().code(), code);
    EXPECT_THAT(Message(config.status()), HasSubstr(reason));
  }
  void ExpectInvalid(const std::string& reason) const {
    ExpectRefused(absl::StatusCode::kInvalidArgument, reason);
  }
  void ExpectUnsupported(const std::string& reason) const {
    ExpectRefused(absl::StatusCode::kUnimplemented, reason);
  }

 private:
  MetadataBuilder& Set(const std::string& key, std::function<void(test::GgufWriter&)> add) {
    entries_[key] = std::move(add);
    return *this;
  }

  std::string architecture_;
  std::map<std::string, std::function<void(test::GgufWriter&)>> entries_;
};

TEST(ConfigTest, ReadsTheShapeAndFillsInDefaults) {
  const auto config = MetadataBuilder().Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->group_size(), 2);
  EXPECT_EQ(config->vocab_size, 10);
  EXPECT_EQ(config->rope_freq_base, 10000.0);
  EXPECT_EQ(config->rope_frequency_scale, 1.0);
  EXPECT_EQ(config->rotary_pairs, RotaryPairs::kAdjacent);
  EXPECT_EQ(MetadataBuilder("qwen2").Read()->rotary_pairs, RotaryPairs::kHalves);
  EXPECT_EQ(MetadataBuilder().Without("attention.head_count_kv").Read()->kv_head_count, 4);
  EXPECT_EQ(MetadataBuilder()
                .Count("attention.key_length", 32)
                .Count("attention.value_length", 32)
                .Read()
                ->head_dim,
            32);
}

TEST(ConfigTest, AcceptsPerLayerArraysWhenAllLayersAgree) {
  EXPECT_EQ(MetadataBuilder().Counts("attention.head_count_kv", {4, 4}).Read()->kv_head_count, 4);
  MetadataBuilder()
      .Counts("attention.head_count_kv", {4, 2})
      .ExpectUnsupported("differs between layers");
  EXPECT_EQ(MetadataBuilder().Counts("attention.head_count", {8, 8}).Read()->head_count, 8);
  EXPECT_EQ(MetadataBuilder().Counts("feed_forward_length", {9, 9}).Read()->feed_forward_length, 9);
  MetadataBuilder()
      .Counts("feed_forward_length", {96, 64})
      .ExpectUnsupported("feed_forward_length' differs between layers (96 and 64)");
  MetadataBuilder()
      .Counts("attention.head_count", {4, 4, 4})
      .ExpectInvalid("has 3 elements for 2 layers");
  MetadataBuilder().Counts("attention.head_count", {}).ExpectInvalid("has 0 elements for 2 layers");
}

TEST(ConfigTest, LinearRopeScalingDividesTheFrequencies) {
  EXPECT_EQ(MetadataBuilder().Number("rope.scaling.factor", 4.0F).Read()->rope_frequency_scale,
            0.25);
  EXPECT_EQ(MetadataBuilder().Number("rope.scale_linear", 2.0F).Read()->rope_frequency_scale, 0.5);
  EXPECT_EQ(MetadataBuilder()
                .Text("rope.scaling.type", "none")
                .Number("rope.scaling.factor", 4.0F)
                .Read()
                ->rope_frequency_scale,
            1.0);
}

TEST(ConfigTest, ReadsYarnScaling) {
  MetadataBuilder file("qwen2");
  file.Text("rope.scaling.type", "yarn").Number("rope.scaling.factor", 4.0F);
  auto config = file.Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_frequency_scale, 0.25);
  EXPECT_EQ(config->yarn_ext_factor, 1.0);
  EXPECT_EQ(config->yarn_original_context, 128.0);  // the context length, for want of a key
  EXPECT_EQ(config->yarn_beta_fast, 32.0);
  EXPECT_EQ(config->yarn_beta_slow, 1.0);
  EXPECT_EQ(config->rope_magnitude, 1.0);
  file.Count("rope.scaling.original_context_length", 32)
      .Number("rope.scaling.attn_factor", 2.0F)
      .Number("rope.scaling.yarn_attn_factor", 0.75F)
      .Number("rope.scaling.yarn_ext_factor", 0.5F)
      .Number("rope.scaling.yarn_beta_fast", 16.0F)
      .Number("rope.scaling.yarn_beta_slow", 2.0F);
  config = file.Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->yarn_ext_factor, 0.5);
  EXPECT_EQ(config->yarn_original_context, 32.0);
  EXPECT_EQ(config->yarn_beta_fast, 16.0);
  EXPECT_EQ(config->yarn_beta_slow, 2.0);
  EXPECT_EQ(config->rope_magnitude, 1.5);
  config = file.Number("rope.scaling.yarn_attn_factor", 0.0F).Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_magnitude, 2.0);  // 0 is "not set"
  // Other scaling has nothing of it.
  config = file.Text("rope.scaling.type", "linear").Read();
  EXPECT_EQ(config->yarn_ext_factor, 0.0);
  EXPECT_EQ(config->rope_magnitude, 2.0);
}

TEST(ConfigTest, RefusesImpossibleScaling) {
  const auto yarn = [](const std::string& key, float value) {
    return MetadataBuilder().Text("rope.scaling.type", "yarn").Number("rope." + key, value);
  };
  yarn("scaling.yarn_beta_slow", 64.0F).ExpectInvalid("yarn_beta_fast' is 32");
  yarn("scaling.yarn_beta_fast", 0.0F).ExpectInvalid("yarn_beta_fast' is 0");
  yarn("scaling.yarn_ext_factor", 2.0F).ExpectInvalid("yarn_ext_factor' is 2");
  yarn("freq_base", 1.0F).ExpectInvalid("freq_base' is 1");
  yarn("scaling.factor", -1.0F).ExpectInvalid("factor' is -1");
  for (const std::string type : {"longrope", "su", ""}) {
    MetadataBuilder()
        .Text("rope.scaling.type", type)
        .ExpectUnsupported("'llama.rope.scaling.type' is '" + type + "'; Cairn runs none, linear");
  }
  MetadataBuilder().Count("rope.scaling.type", 1).ExpectInvalid("scaling.type' is no string");
}

TEST(ConfigTest, TheVocabularyHasAsManyTokensAsTheEmbeddingRows) {
  EXPECT_TRUE(MetadataBuilder().Count("vocab_size", 10).Tokens(10).Read().ok());
  MetadataBuilder()
      .Count("vocab_size", 11)
      .ExpectInvalid("key 'llama.vocab_size' is 11, but tensor 'token_embd.weight' has 10 rows");
  MetadataBuilder().Tokens(9).ExpectInvalid("tokenizer has 9 tokens");
  MetadataBuilder().Tokens(11).ExpectInvalid("tokenizer has 11 tokens");
}

TEST(ConfigTest, ReportsEveryProblem) {
  const ModelConfigReport report = MetadataBuilder()
                                       .Text("rope.scaling.type", "longrope")
                                       .Count("attention.sliding_window", 64)
                                       .Count("expert_count", 8)
                                       .Count("vocab_size", 11)
                                       .Without("attention.layer_norm_rms_epsilon")
                                       .Report();
  ASSERT_EQ(report.problems.size(), 5U);
  EXPECT_TRUE(report.shape_is_known);
  EXPECT_EQ(report.config.head_dim, 16);
  EXPECT_FALSE(MetadataBuilder().Without("block_count").Report().shape_is_known);
}

// The shape of another architecture is for the reader only.
TEST(ConfigTest, AnotherArchitectureIsOneProblem) {
  const ModelConfigReport report =
      MetadataBuilder("mistral3").Without("attention.layer_norm_rms_epsilon").Report();
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_THAT(Message(report.problems[0]),
              HasSubstr("'mistral3' is not supported; Cairn runs llama (also Mistral and Llama 3) "
                        "and qwen2"));
  EXPECT_TRUE(report.shape_is_known);
  EXPECT_FALSE(report.architecture_is_known);
}

TEST(ConfigTest, RefusesWhatCairnDoesNotCompute) {
  MetadataBuilder("falcon").ExpectUnsupported("architecture 'falcon' is not supported");
  MetadataBuilder().Flag("attention.causal", false).ExpectUnsupported("attention.causal' is false");
  EXPECT_TRUE(MetadataBuilder().Flag("attention.causal", true).Read().ok());
  MetadataBuilder().Number("attention.scale", 0.5F).ExpectUnsupported("attention.scale' is 0.5");
  MetadataBuilder().Number("logit_scale", 8.0F).ExpectUnsupported("logit_scale' is 8");
  EXPECT_TRUE(MetadataBuilder().Number("logit_scale", 1.0F).Read().ok());
  MetadataBuilder().Count("attention.sliding_window", 64).ExpectUnsupported("sliding-window");
  MetadataBuilder().Count("expert_count", 8).ExpectUnsupported("8 experts");
  MetadataBuilder()
      .Count("rope.dimension_count", 8)
      .ExpectUnsupported("rotary embedding of 8 of 16");
  MetadataBuilder().Count("attention.value_length", 8).ExpectUnsupported("value heads of 8");
  MetadataBuilder().Count("attention.head_count", 16).ExpectUnsupported("head size 4");
  EXPECT_TRUE(MetadataBuilder().Count("attention.sliding_window", 128).Read().ok());
}

TEST(ConfigTest, RefusesMissingAndImpossibleValues) {
  MetadataBuilder().Without("block_count").ExpectInvalid("'llama.block_count' is missing");
  MetadataBuilder()
      .Without("attention.layer_norm_rms_epsilon")
      .ExpectInvalid("epsilon' is missing");
  MetadataBuilder().Count("block_count", 0).ExpectInvalid("'llama.block_count' is 0");
  MetadataBuilder().Count("block_count", 4'000'000'000).ExpectInvalid("must be 1 to 512");
  MetadataBuilder().Count("embedding_length", 4'000'000'000).ExpectInvalid("embedding_length");
  MetadataBuilder()
      .Without("attention.head_count_kv")
      .Count("attention.head_count", 65)
      .ExpectInvalid("65 heads in an embedding of 64");
  MetadataBuilder().Count("attention.head_count_kv", 3).ExpectInvalid("cannot share");
  MetadataBuilder().Count("attention.head_count_kv", 8).ExpectInvalid("head_count_kv");
  MetadataBuilder().Text("block_count", "two").ExpectInvalid("is no integer");
  MetadataBuilder()
      .Number("rope.freq_base", std::numeric_limits<float>::quiet_NaN())
      .ExpectInvalid("freq_base");
  MetadataBuilder().Number("rope.freq_base", 0.0F).ExpectInvalid("freq_base");
  MetadataBuilder().Count("attention.layer_norm_rms_epsilon", 1).ExpectInvalid("no floating point");
}

// As if it were absent, the answers would be wrong.
TEST(ConfigTest, RefusesValuesOfAnotherKind) {
  MetadataBuilder().Count("attention.causal", 0).ExpectInvalid("attention.causal' is no bool");
  for (const char* scale : {"attention.scale", "final_logit_softcapping", "logit_scale"}) {
    MetadataBuilder().Count(scale, 30).ExpectInvalid("is no floating point number");
    MetadataBuilder().Text(scale, "30").ExpectInvalid("is no floating point number");
  }
  MetadataBuilder()
      .Number("logit_scale", std::numeric_limits<float>::quiet_NaN())
      .ExpectInvalid("logit_scale' is nan");
  test::GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddU32("general.type", 1);
  const std::string bytes = writer.ToString();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  EXPECT_THAT(Message(ReadModelConfig(**file).status()), HasSubstr("general.type' is no string"));
}

TEST(ConfigTest, AnAdapterIsNoModel) {
  test::GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  writer.AddString("general.type", "adapter");
  const std::string bytes = writer.ToString();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  EXPECT_THAT(Message(ReadModelConfig(**file).status()), HasSubstr("base model"));
}

}  // namespace
}  // namespace cairn::compute
