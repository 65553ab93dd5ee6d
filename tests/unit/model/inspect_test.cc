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

}  // namespace
}  // namespace cairn::compute
