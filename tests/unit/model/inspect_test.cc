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
  EXPECT_TRUE(report.problems.empty()) << report.text;
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
  EXPECT_TRUE(report.problems.empty()) << report.text;
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
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problems[0].code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      Message(report.problems[0]),
      HasSubstr("tensor 'blk.1.ffn_up.weight' is of type IQ3_S; Cairn computes with F32, "));
}

TEST(InspectTest, SaysWhyAModelDoesNotRun) {
  GgufBytes bytes;
  bytes.Header(1, 1).Key("general.architecture", GgufValueType::kString).String("mamba\033");
  bytes.Tensor("t", {256}, static_cast<std::uint32_t>(GgufTensorType::kQ4K), 0).Pad(32).Zeros(160);
  const auto file = bytes.Parse();
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelReport report = InspectModel(**file);
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
  return file.ok() ? InspectModel(**file).text : "";
}

TEST(InspectTest, ChecksWhatLoadingChecks) {
  EXPECT_THAT(WhyNot("qwen2.block_count", 0, "\003"),
              HasSubstr("'blk.2.attn_norm.weight' is missing"));
  EXPECT_THAT(WhyNot("qwen2.feed_forward_length", 0, "\003"),
              HasSubstr("'blk.0.ffn_gate.weight' has shape"));
  EXPECT_THAT(WhyNot("tokenizer.ggml.model", 8, "gpt3"), HasSubstr("'gpt3'"));
}

// The report of a model that the tests' maker writes.
std::string Report(const std::string& preset, const std::string& type,
                   const InspectOptions& options = {}) {
  const std::string bytes = test::MakeModel({.preset = preset, .type = type})->ToString();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  EXPECT_TRUE(file.ok()) << file.status();
  return InspectModel(**file, options).text;
}

// Programs read these lines: docs/models.md promises them.
TEST(InspectTest, EstimatesWhatRunningTakes) {
  const std::string text = Report("tiny-llama", "f16");
  // q 256, k and v 64, output 256, gate and up 512 rows of 256; down 256 of 512; output 512 of 256.
  const int weights = (2 * ((256 + 128 + 256 + 1024) * 256 + 256 * 512) + 512 * 256) * 2;
  // And sums of queries, as many rows as keys, in f16.
  EXPECT_THAT(text,
              HasSubstr(fmt::format("weights_memory:  {} bytes (", weights + 2 * 64 * 256 * 2)));
  EXPECT_THAT(text, HasSubstr("kv_bytes_token:  1024 in f32, 512 in f16, 272 in q8, 216 in q4\n"));
  EXPECT_THAT(text, HasSubstr("flash_1k_tokens: bytes 1048576 in f32, 524288 in f16, "));
  EXPECT_THAT(text, HasSubstr(fmt::format("decode_reads:    {} bytes of weights a token, and of "
                                          "keys and values for each token before it 1024 in f32, "
                                          "512 in f16, 272 in q8, 216 in q4\n",
                                          weights)));
  EXPECT_THAT(text, HasSubstr(" for passes of 2048 tokens\n"));  // the context's length
  EXPECT_EQ(text.find("bandwidth"), std::string::npos);
}

TEST(InspectTest, TheProbeBoundsTheSpeed) {
  InspectOptions options;
  options.probe = [] { return ReadBandwidth{4e9, 2, 1 << 26}; };
  const std::string text = Report("tiny-deep", "f32", options);
  EXPECT_THAT(text, HasSubstr("read_bandwidth:  4.0 GB/s with 2 threads over 67108864 bytes\n"));
  // 4 layers of (128 + 64 + 64 + 128 + 512) x 128 + 128 x 256 f32, the output 512 x 128; each token
  // before has 4 x 2 entries of 64 f16 in all.
  const double weights = (4 * (896.0 * 128 + 128 * 256) + 512 * 128) * 4;
  EXPECT_THAT(text,
              HasSubstr(fmt::format(
                  "decode_bound:    tokens/s at most {:.1f} after 0 tokens, {:.1f} after "
                  "4096 tokens, {:.1f} after 16384 tokens\n",
                  4e9 / weights, 4e9 / (weights + 4096 * 1024), 4e9 / (weights + 16384 * 1024))));
  options.probe = [] { return ResourceExhausted("no memory"); };
  EXPECT_THAT(Report("tiny-llama", "f32", options),
              HasSubstr("read_bandwidth:  not measured: no memory\n"));
}

TEST(InspectTest, ShowsHowPositionsAreStretched) {
  EXPECT_THAT(Report("tiny-llama", "f32"),
              HasSubstr("rope:            base 10000, adjacent pairs\n"));
  EXPECT_THAT(Report("linear-llama", "f32"), HasSubstr("adjacent pairs, linear scaling by 4\n"));
  EXPECT_THAT(Report("yarn-qwen2", "f32"),
              HasSubstr("half pairs, yarn scaling by 4 from 1024 tokens\n"));
  EXPECT_THAT(Report("tiny-llama3", "f32"), HasSubstr("pairs, divisors in rope_freqs.weight\n"));
}

TEST(InspectTest, GivesEveryReason) {
  test::GgufWriter writer = *test::MakeModel({.preset = "tiny-llama"});
  writer.AddU32("llama.attention.sliding_window", 64);
  writer.AddU32("llama.expert_count", 8);
  writer.AddString("llama.rope.scaling.type", "longrope");
  for (int i = 0; i < 20; ++i) {
    writer.AddTensor(fmt::format("more.{}", i), {1}, test::TensorType::kF32,
                     [](std::int64_t, std::span<float> row) { row[0] = 0; });
  }
  const std::string bytes = writer.ToString();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status();
  InspectOptions options;
  options.probe = []() -> absl::StatusOr<ReadBandwidth> {
    ADD_FAILURE() << "nobody wants to know";
    return ReadBandwidth{};
  };
  const ModelReport report = InspectModel(**file, options);
  for (const std::string_view reason :
       {"no: model metadata: 'llama.rope.scaling.type' is 'longrope'",
        "no: model metadata: sliding-window attention of 64 tokens",
        "no: model metadata: a mixture of 8 experts", "no: tensor 'more.0' is not part",
        "no: 4 more tensors do not fit"}) {
    EXPECT_THAT(report.text, HasSubstr(reason));
  }
  EXPECT_EQ(report.problems.size(), 20U);
  EXPECT_EQ(report.text.find("weights_memory"), std::string::npos);
}

TEST(InspectTest, AVocabularyHasOneReason) {
  GgufBytes bytes;
  bytes.Header(0, 1).Key("general.architecture", GgufValueType::kString).String("llama");
  const auto file = bytes.Parse();
  ASSERT_TRUE(file.ok()) << file.status();
  const ModelReport report = InspectModel(**file);
  EXPECT_THAT(report.text, HasSubstr("runs:            no: the file holds a vocabulary"));
  EXPECT_EQ(report.text.find("is missing"), std::string::npos);
}

}  // namespace
}  // namespace cairn::compute
