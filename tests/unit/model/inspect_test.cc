#include "compute-node/model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/model_maker.h"
#include "tests/unit/model/gguf_bytes.h"

namespace cairn::compute {
namespace {

using testing::HasSubstr;

TEST(InspectTest, ShowsShapeTypesAndBytes) {
  auto writer = test::MakeModel({.preset = "tiny-qwen2", .type = "q8_0", .seed = 1});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::string bytes = writer->ToString();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelReport report = InspectModel(**file);
  EXPECT_TRUE(report.runnable.ok()) << report.runnable;
  EXPECT_THAT(report.text, HasSubstr("architecture:    qwen2\n"));
  EXPECT_THAT(report.text, HasSubstr("Q8_0:"));
  EXPECT_THAT(report.text, HasSubstr("tokenizer:       gpt2, pre-tokenizer qwen2"));
  EXPECT_THAT(report.text, HasSubstr("runs:            yes"));
}

TEST(InspectTest, NamesTheFamilyOfTheChatTemplate) {
  for (const auto& [text, line] : std::vector<std::pair<std::string, std::string>>{
           {"", "chat_template:   (none)\n"},
           {"{{ '<|im_start|>' }}", "chat_template:   chatml\n"},
           {"{{ messages }}", "chat_template:   (of no family that Cairn knows)\n"}}) {
    auto writer = test::MakeModel({.preset = "tiny-qwen2"});
    ASSERT_TRUE(writer.ok()) << writer.status();
    writer->AddString("tokenizer.chat_template", text);
    const std::string bytes = writer->ToString();
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(InspectModel(**file).text, HasSubstr(line));
  }
}

TEST(InspectTest, NamesEveryTypeOfAMix) {
  const std::string bytes = test::MakeModel({.preset = "tiny-llama", .type = "q4_k_m"})->ToString();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelReport report = InspectModel(**file);
  EXPECT_TRUE(report.runnable.ok()) << report.runnable;
  for (const std::string_view line : {"  F32:", "  Q4_K:", "  Q6_K:"}) {
    EXPECT_THAT(report.text, HasSubstr(line));
  }
}

// A type of the format that Cairn does not compute with: the file can be inspected all the same.
TEST(InspectTest, ATypeThatCannotBeComputedWithIsNamedWithItsTensor) {
  std::string bytes = test::MakeModel({.preset = "tiny-llama", .type = "q3_k"})->ToString();
  constexpr std::string_view kName = "blk.1.ffn_up.weight";
  // Behind the name: the number of dimensions, two of them, the type. IQ3_S blocks are as long as
  // those of Q3_K.
  bytes[bytes.find(kName) + kName.size() + 4 + 16] = static_cast<char>(GgufTensorType::kIq3S);
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelReport report = InspectModel(**file);
  EXPECT_THAT(report.text, HasSubstr("  IQ3_S:"));
  EXPECT_EQ(report.runnable.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      Message(report.runnable),
      HasSubstr("tensor 'blk.1.ffn_up.weight' is of type IQ3_S; Cairn computes with F32, "));
}

TEST(InspectTest, SaysWhyAModelDoesNotRun) {
  GgufBytes bytes;
  bytes.Header(1, 1).Key("general.architecture", GgufValueType::kString).String("mamba\033");
  bytes.Tensor("t", {256}, static_cast<std::uint32_t>(GgufTensorType::kQ4K), 0).Pad(32).Zeros(160);
  const auto file = bytes.Parse();
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelReport report = InspectModel(**file);
  EXPECT_EQ(report.runnable.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(report.text, HasSubstr("Q4_K:"));
  EXPECT_THAT(report.text, HasSubstr("runs:            no: model architecture 'mamba"));
  EXPECT_EQ(report.text.find('\033'), std::string::npos);
}

// A model whose metadata was changed at `offset` bytes behind a key's name and type.
std::string WhyNot(std::string_view key, std::size_t offset, std::string_view value) {
  std::string bytes = test::MakeModel({.preset = "tiny-qwen2"})->ToString();
  bytes.replace(bytes.find(key) + key.size() + 4 + offset, value.size(), value);
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? std::string(InspectModel(**file).runnable.message()) : "";
}

TEST(InspectTest, ChecksWhatLoadingChecks) {
  EXPECT_THAT(WhyNot("qwen2.block_count", 0, "\003"),
              HasSubstr("'blk.2.attn_norm.weight' is missing"));
  EXPECT_THAT(WhyNot("qwen2.feed_forward_length", 0, "\003"),
              HasSubstr("'blk.0.ffn_gate.weight' has shape"));
  EXPECT_THAT(WhyNot("tokenizer.ggml.model", 8, "gpt3"), HasSubstr("'gpt3'"));
}

}  // namespace
}  // namespace cairn::compute
