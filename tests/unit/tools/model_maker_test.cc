#include "tests/tools/model_maker.h"

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "tests/tools/reference_forward.h"

namespace cairn::test {
namespace {

std::string TestPath(const std::string& name) {
  return testing::TempDir() + "/model_maker_" + name;
}

std::string Make(const std::string& preset, const std::string& type, uint64_t seed = 1,
                 const std::string& vocab_from = "") {
  std::string path = TestPath(preset + "_" + type + ".gguf");
  const absl::Status status =
      WriteModel({.preset = preset, .type = type, .seed = seed, .vocab_from = vocab_from}, path);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

std::vector<float> LastLogits(const std::string& path) {
  const auto model = ReferenceModel::Load(path);
  EXPECT_TRUE(model.ok()) << model.status();
  const auto logits = model->Logits(ReferencePrompt(16, model->vocab_size()), 15);
  return {logits.begin(), logits.end()};
}

TEST(ModelMakerTest, TypesOfOneSeedHoldTheSameWeightsAtOtherPrecision) {
  // How far quantising the weights alone moves the logits of these models; another model would be
  // about 1.4 away.
  const std::map<std::string, double> tolerances = {
      {"f16", 2e-3}, {"bf16", 1e-2}, {"q8_0", 3e-2}, {"q4_0", 0.45}};
  for (const std::string preset :
       {"tiny-llama", "tiny-llama3", "tiny-qwen2", "tiny-mistral", "tiny-deep"}) {
    const std::vector<float> exact_floats = LastLogits(Make(preset, "f32"));
    const std::vector<double> exact(exact_floats.begin(), exact_floats.end());
    for (const auto& [type, tolerance] : tolerances) {
      EXPECT_LT(RelativeDistance(LastLogits(Make(preset, type)), exact), tolerance)
          << preset << " " << type;
    }
    EXPECT_GT(RelativeDistance(LastLogits(Make(preset, "f32", 2)), exact), 0.9) << preset;
  }
}

TEST(ModelMakerTest, QuantisedFilesKeepTheOutputFiner) {
  const auto file = ReadReferenceGguf(Make("tiny-llama", "q4_0"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->tensors.at("output.weight").type, 14U);  // Q6_K
  EXPECT_EQ((*file)->tensors.at("token_embd.weight").type, 14U);
  EXPECT_EQ((*file)->tensors.at("blk.0.attn_q.weight").type, 2U);
  EXPECT_EQ((*file)->tensors.at("blk.0.attn_norm.weight").type, 0U);
  // Rows of 128 values cannot be Q6_K.
  const auto deep = ReadReferenceGguf(Make("tiny-deep", "q4_0"));
  ASSERT_TRUE(deep.ok());
  EXPECT_EQ((*deep)->tensors.at("output.weight").type, 8U);
}

TEST(ModelMakerTest, AMixHoldsSomeMatricesFiner) {
  const auto file = ReadReferenceGguf(Make("tiny-llama", "q4_k_m"));
  ASSERT_TRUE(file.ok());
  const auto type_of = [&](const std::string& name) { return (*file)->tensors.at(name).type; };
  EXPECT_EQ(type_of("token_embd.weight"), 12U);  // Q4_K
  EXPECT_EQ(type_of("output.weight"), 14U);
  EXPECT_EQ(type_of("blk.0.attn_v.weight"), 12U);
  EXPECT_EQ(type_of("blk.0.ffn_down.weight"), 12U);
  EXPECT_EQ(type_of("blk.1.attn_v.weight"), 14U);
  EXPECT_EQ(type_of("blk.1.ffn_down.weight"), 14U);
  EXPECT_EQ(type_of("blk.1.ffn_up.weight"), 12U);
  EXPECT_EQ((*file)->values.at("general.file_type").number, 15.0);
  // An embedding that is the output matrix too.
  const auto tied = ReadReferenceGguf(Make("tiny-qwen2", "q4_k_m"));
  ASSERT_TRUE(tied.ok());
  EXPECT_EQ((*tied)->tensors.at("token_embd.weight").type, 14U);
}

TEST(ModelMakerTest, RowsThatNoBlockDividesAreStoredInShorterBlocks) {
  for (const auto& [type, expected] : {std::pair<std::string, uint32_t>{"q2_k", 20},
                                       {"q3_k", 20},
                                       {"q4_k", 6},
                                       {"q5_k", 7},
                                       {"q6_k", 8}}) {
    const auto file = ReadReferenceGguf(Make("tiny-deep", type));
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->tensors.at("blk.0.attn_q.weight").type, expected) << type;
  }
}

TEST(ModelMakerTest, ACopiedVocabularySetsTheSizeOfTheModel) {
  const std::string source = Make("tiny-llama3", "f32");
  const std::string path = Make("tiny-qwen2", "q8_0", 1, source);
  const auto file = ReadReferenceGguf(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->values.at("tokenizer.ggml.pre").text, "llama-bpe");
  EXPECT_EQ((*file)->values.at("tokenizer.ggml.tokens").elements.size(), 640U);
  EXPECT_EQ((*file)->values.at("qwen2.vocab_size").number, 640.0);
  EXPECT_EQ((*file)->tensors.at("token_embd.weight").shape[1], 640);
}

TEST(ModelMakerTest, ASmallerCopiedVocabularyIsFilledUp) {
  const std::string source = Make("tiny-llama", "f32");
  const auto file = ReadReferenceGguf(Make("tiny-qwen2", "f32", 1, source));
  ASSERT_TRUE(file.ok());
  for (const std::string key : {"tokens", "token_type", "scores"}) {
    EXPECT_EQ((*file)->values.at("tokenizer.ggml." + key).elements.size(), 576U) << key;
  }
}

TEST(ModelMakerTest, UnknownNamesAreRefused) {
  EXPECT_EQ(MakeModel({.preset = "huge"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeModel({.preset = "tiny-llama", .type = "q3"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeModel({.preset = "tiny-llama", .vocab_from = "/nonexistent"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(WriteModel({.preset = "tiny-llama"}, "/nonexistent/model.gguf").ok());
}

TEST(ModelMakerTest, TheSameOptionsWriteTheSameBytes) {
  const auto first = MakeModel({.preset = "tiny-deep", .type = "q8_0", .seed = 9});
  const auto second = MakeModel({.preset = "tiny-deep", .type = "q8_0", .seed = 9});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->ToString(), second->ToString());
}

}  // namespace
}  // namespace cairn::test
