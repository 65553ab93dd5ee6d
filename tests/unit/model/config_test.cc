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
    return Set(key, [=, this](test::GgufWriter& w) { w.AddU32(architecture_ + "." + key, value); });
  }
  MetadataBuilder& Number(const std::string& key, float value) {
    return Set(key, [=, this](test::GgufWriter& w) { w.AddF32(architecture_ + "." + key, value); });
  }
  MetadataBuilder& Text(const std::string& key, const std::string& value) {
    return Set(key,
               [=, this](test::GgufWriter& w) { w.AddString(architecture_ + "." + key, value); });
  }
  MetadataBuilder& Counts(const std::string& key, const std::vector<std::int32_t>& values) {
    return Set(
        key, [=, this](test::GgufWriter& w) { w.AddI32Array(architecture_ + "." + key, values); });
  }
  MetadataBuilder& Without(const std::string& key) {
    entries_.erase(key);
    return *this;
  }

  absl::StatusOr<ModelConfig> Read() const {
    test::GgufWriter writer;
    writer.AddString("general.architecture", architecture_);
    for (const auto& [key, add] : entries_) {
      add(writer);
    }
    writer.AddTensor(
        "token_embd.weight", {64, 10}, test::TensorType::kF32,
        [](std::int64_t, std::span<float> row) { std::fill(row.begin(), row.end(), 0.0F); });
    const std::string bytes = writer.ToString();
    CAIRN_ASSIGN_OR_RETURN(const auto file, GgufFile::Parse(std::as_bytes(std::span(bytes))));
    return ReadModelConfig(*file);
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
  EXPECT_EQ(config->rope_pairing, RopePairing::kAdjacent);
  EXPECT_EQ(MetadataBuilder("qwen2").Read()->rope_pairing, RopePairing::kHalves);
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

TEST(ConfigTest, RefusesWhatCairnDoesNotCompute) {
  MetadataBuilder("falcon").ExpectUnsupported("architecture 'falcon' is not supported");
  MetadataBuilder().Text("rope.scaling.type", "yarn").ExpectUnsupported("'yarn'");
  MetadataBuilder().Number("rope.scaling.attn_factor", 1.5F).ExpectUnsupported("attn_factor");
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
  MetadataBuilder().Count("attention.head_count_kv", 3).ExpectInvalid("cannot share");
  MetadataBuilder().Count("attention.head_count_kv", 8).ExpectInvalid("head_count_kv");
  MetadataBuilder().Text("block_count", "two").ExpectInvalid("is no integer");
  MetadataBuilder()
      .Number("rope.freq_base", std::numeric_limits<float>::quiet_NaN())
      .ExpectInvalid("freq_base");
  MetadataBuilder().Number("rope.freq_base", 0.0F).ExpectInvalid("freq_base");
  MetadataBuilder().Count("attention.layer_norm_rms_epsilon", 1).ExpectInvalid("no floating point");
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
