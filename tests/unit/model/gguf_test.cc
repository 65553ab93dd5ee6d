// What the GGUF reader reads, and that it refuses every kind of malformed file with an error that
// names the object.
#include "compute-node/model/gguf/gguf.h"

#include <fstream>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/model_maker.h"
#include "tests/unit/model/gguf_bytes.h"

namespace cairn::compute {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kF32 = static_cast<std::uint32_t>(GgufTensorType::kF32);
constexpr auto kQ8 = static_cast<std::uint32_t>(GgufTensorType::kQ80);

void ExpectRefused(const GgufBytes& file, absl::StatusCode code, const std::string& reason) {
  const auto parsed = file.Parse();
  ASSERT_FALSE(parsed.ok()) << "expected: " << reason;
  EXPECT_EQ(parsed.status().code(), code);
  EXPECT_THAT(Message(parsed.status()), HasSubstr(reason));
}

void ExpectInvalid(const GgufBytes& file, const std::string& reason) {
  ExpectRefused(file, absl::StatusCode::kInvalidArgument, reason);
}

TEST(GgufTest, ReadsEveryKindOfValue) {
  GgufBytes file;
  file.Header(0, 16);
  file.Key("u8", GgufValueType::kUint8).Number<std::uint8_t>(200);
  file.Key("i8", GgufValueType::kInt8).Number<std::int8_t>(-3);
  file.Key("u16", GgufValueType::kUint16).Number<std::uint16_t>(60000);
  file.Key("i16", GgufValueType::kInt16).Number<std::int16_t>(-300);
  file.Key("u32", GgufValueType::kUint32).Number<std::uint32_t>(4'000'000'000);
  file.Key("i32", GgufValueType::kInt32).Number<std::int32_t>(-70000);
  file.Key("u64", GgufValueType::kUint64).Number(std::numeric_limits<std::uint64_t>::max());
  file.Key("i64", GgufValueType::kInt64).Number(std::numeric_limits<std::int64_t>::min());
  file.Key("f32", GgufValueType::kFloat32).Number(1.5F);
  file.Key("f64", GgufValueType::kFloat64).Number(2.25);
  file.Key("yes", GgufValueType::kBool).Number<std::uint8_t>(1);
  file.Key("text", GgufValueType::kString).String("hello");
  file.ArrayKey("strings", GgufValueType::kString, 3).String("a").String("").String("ccc");
  file.ArrayKey("ints", GgufValueType::kInt32, 2).Number<std::int32_t>(-1).Number<std::int32_t>(7);
  file.ArrayKey("floats", GgufValueType::kFloat32, 2).Number(0.5F).Number(-1.0F);
  file.ArrayKey("large", GgufValueType::kUint32, 1).Number<std::uint32_t>(4'000'000'000);
  const auto parsed = file.Parse();
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const GgufFile& gguf = **parsed;
  EXPECT_EQ(gguf.FindUint("u8"), 200U);
  EXPECT_EQ(gguf.FindInt("i8"), -3);
  EXPECT_EQ(gguf.FindUint("i8"), std::nullopt);
  EXPECT_EQ(gguf.FindUint("u16"), 60000U);
  EXPECT_EQ(gguf.FindInt("i16"), -300);
  EXPECT_EQ(gguf.FindInt("u32"), 4'000'000'000);
  EXPECT_EQ(gguf.FindInt("i32"), -70000);
  EXPECT_EQ(gguf.FindUint("u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(gguf.FindInt("u64"), std::nullopt);
  EXPECT_EQ(gguf.FindInt("i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(gguf.FindFloat("f32"), 1.5);
  EXPECT_EQ(gguf.FindFloat("f64"), 2.25);
  EXPECT_EQ(gguf.FindFloat("u8"), std::nullopt);
  EXPECT_EQ(gguf.FindBool("yes"), true);
  EXPECT_EQ(gguf.FindString("text"), "hello");
  EXPECT_EQ(gguf.FindString("u8"), std::nullopt);
  EXPECT_THAT(*gguf.FindStringArray("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*gguf.FindInt32Array("ints"), ElementsAre(-1, 7));
  EXPECT_EQ(gguf.FindInt32Array("large"), std::nullopt);
  EXPECT_THAT(*gguf.FindFloatArray("floats"), ElementsAre(0.5F, -1.0F));
  EXPECT_EQ(gguf.FindArrayCount("strings"), 3);
  EXPECT_EQ(gguf.FindArrayElementType("ints"), GgufValueType::kInt32);
  EXPECT_EQ(gguf.FindType("floats"), GgufValueType::kArray);
  EXPECT_FALSE(gguf.Has("none"));
  EXPECT_EQ(gguf.Keys().size(), 16U);
  EXPECT_EQ(gguf.Keys()[12], "strings");
}

TEST(GgufTest, ReadsTensorsInBothVersions) {
  for (const std::uint32_t version : {2U, 3U}) {
    GgufBytes file;
    file.Header(2, 0, version).Tensor("a", {3, 2}, kF32, 0).Tensor("b", {64}, kQ8, 32).Pad(32);
    const std::size_t data_begin = file.bytes().size();
    file.Zeros(32 + 64 + 4);
    const auto parsed = file.Parse();
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const GgufTensor* b = (*parsed)->FindTensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->data.size(), 68U);
    EXPECT_EQ(b->data.data() - (*parsed)->data().data(),
              static_cast<std::ptrdiff_t>(data_begin + 32));
    EXPECT_EQ((*parsed)->FindTensor("a")->row_count(), 2);
    EXPECT_EQ((*parsed)->FindTensor("a")->row_bytes(), 12);
    EXPECT_EQ((*parsed)->FindTensor("c"), nullptr);
    EXPECT_EQ((*parsed)->version(), version);
  }
}

TEST(GgufTest, ObeysTheFilesAlignment) {
  GgufBytes file;
  file.Header(2, 1).Key("general.alignment", GgufValueType::kUint32).Number<std::uint32_t>(128);
  file.Tensor("a", {1}, kF32, 0).Tensor("b", {1}, kF32, 128).Pad(128).Zeros(132);
  const auto parsed = file.Parse();
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed)->alignment(), 128U);
}

TEST(GgufTest, RefusesWhatIsNoGguf) {
  ExpectInvalid(GgufBytes().Number<std::uint32_t>(0x04034b50).Zeros(100), "not a GGUF file");
  ExpectInvalid(GgufBytes().Zeros(3), "truncated");
  ExpectInvalid(GgufBytes().Header(0, 0, 1), "version 1");
  ExpectInvalid(GgufBytes().Header(0, 0, 0x03000000), "version 50331648");
}

TEST(GgufTest, RefusesCountsBeyondTheLimits) {
  ExpectInvalid(GgufBytes().Header(std::numeric_limits<std::uint64_t>::max(), 0), "tensor count");
  ExpectInvalid(GgufBytes().Header(0, kGgufKeyCountMax + 1), "key count");
  ExpectInvalid(GgufBytes().Header(0, 1).Number<std::uint64_t>(1 << 20).Zeros(1 << 21),
                "over the limit");
  ExpectInvalid(GgufBytes().Header(0, 1).Number(std::numeric_limits<std::uint64_t>::max()),
                "over the limit");
  ExpectInvalid(GgufBytes().Header(0, 1).Number<std::uint64_t>(500).Zeros(20), "truncated");
}

TEST(GgufTest, RefusesMalformedMetadata) {
  const auto u8 = GgufValueType::kUint8;
  ExpectInvalid(GgufBytes().Header(0, 2).Key("k", u8).Zeros(1).Key("k", u8).Zeros(1),
                "'k' is there twice");
  ExpectInvalid(GgufBytes().Header(0, 1).Key("", u8).Zeros(1), "is empty");
  ExpectInvalid(GgufBytes().Header(0, 1).String("k").Number<std::uint32_t>(13).Zeros(8),
                "type 13 is unknown");
  ExpectInvalid(GgufBytes().Header(0, 1).Key("k", GgufValueType::kUint64).Zeros(7), "'k'");
  ExpectInvalid(
      GgufBytes().Header(0, 1).Key("k", GgufValueType::kString).Number<std::uint64_t>(9).Zeros(8),
      "'k'");
  ExpectInvalid(GgufBytes().Header(0, 1).ArrayKey("k", GgufValueType::kArray, 1).Zeros(64),
                "arrays of arrays");
  ExpectInvalid(
      GgufBytes().Header(0, 1).ArrayKey("k", GgufValueType::kFloat64, 1ULL << 61).Zeros(64),
      "elements");
  ExpectInvalid(
      GgufBytes().Header(0, 1).ArrayKey("k", GgufValueType::kString, 1ULL << 61).Zeros(64),
      "elements");
  ExpectInvalid(
      GgufBytes().Header(0, 1).ArrayKey("k", GgufValueType::kString, 2).String("a").Number(~0ULL),
      "'k'");
  ExpectInvalid(GgufBytes()
                    .Header(0, 1)
                    .Key("general.alignment", GgufValueType::kUint32)
                    .Number<std::uint32_t>(24),
                "power of two");
  ExpectInvalid(GgufBytes()
                    .Header(0, 1)
                    .Key("general.alignment", GgufValueType::kUint32)
                    .Number<std::uint32_t>(0),
                "power of two");
  ExpectInvalid(
      GgufBytes().Header(0, 1).Key("general.alignment", GgufValueType::kString).String("32"),
      "power of two");
}

TEST(GgufTest, RefusesMalformedTensors) {
  ExpectInvalid(GgufBytes()
                    .Header(2, 0)
                    .Tensor("t", {1}, kF32, 0)
                    .Tensor("t", {1}, kF32, 32)
                    .Pad(32)
                    .Zeros(64),
                "'t' is there twice");
  ExpectInvalid(
      GgufBytes().Header(1, 0).Tensor(std::string(64, 'n'), {1}, kF32, 0).Pad(32).Zeros(32),
      "over the limit 63");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {}, kF32, 0).Pad(32).Zeros(32),
                "0 dimensions");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {1, 1, 1, 1, 1}, kF32, 0).Pad(32).Zeros(32),
                "5 dimensions");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {4, 0}, kF32, 0).Pad(32).Zeros(32),
                "dimension 1 is 0");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {~0ULL}, kF32, 0).Pad(32).Zeros(32),
                "overflows");
  ExpectInvalid(
      GgufBytes().Header(1, 0).Tensor("t", {1ULL << 32, 1ULL << 32}, kF32, 0).Pad(32).Zeros(32),
      "overflows");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {33}, kQ8, 0).Pad(32).Zeros(128),
                "not a multiple of the 32");
  ExpectRefused(GgufBytes().Header(1, 0).Tensor("t", {32}, 99, 0).Pad(32).Zeros(128),
                absl::StatusCode::kUnimplemented,
                "tensor 't': tensor type 99 is unknown; Cairn computes with F32");
}

TEST(GgufTest, RefusesWrongPlaces) {
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {1}, kF32, 32).Pad(32).Zeros(64), "offset 32");
  ExpectInvalid(GgufBytes()
                    .Header(2, 0)
                    .Tensor("a", {1}, kF32, 0)
                    .Tensor("b", {1}, kF32, 4)
                    .Pad(32)
                    .Zeros(64),
                "offset 4");
  ExpectInvalid(GgufBytes()
                    .Header(2, 0)
                    .Tensor("a", {1}, kF32, 0)
                    .Tensor("b", {1}, kF32, 64)
                    .Pad(32)
                    .Zeros(128),
                "offset 64");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {9}, kF32, 0).Pad(32).Zeros(35), "truncated");
  ExpectInvalid(GgufBytes().Header(1, 0).Tensor("t", {1ULL << 58}, kF32, 0).Pad(32).Zeros(32),
                "truncated");
}

TEST(GgufTest, ErrorsShowNoControlCharacters) {
  const auto parsed =
      GgufBytes().Header(0, 1).Key("a\033[2Jb", GgufValueType::kUint64).Zeros(2).Parse();
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(Message(parsed.status()).find('\033'), std::string::npos);
}

TEST(GgufTest, EveryTruncationIsRefusedOrHarmless) {
  auto model = test::MakeModel({.preset = "tiny-llama", .type = "q8_0", .seed = 3});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string whole = model->ToString();
  const auto full = GgufFile::Parse(std::as_bytes(std::span(whole)));
  ASSERT_TRUE(full.ok()) << full.status();
  const GgufTensor& last = (*full)->tensors().back();
  const auto end =
      static_cast<std::size_t>(last.data.data() + last.data.size() - (*full)->data().data());
  for (std::size_t size = 0; size < end; size += size < 4096 ? 1 : 4999) {
    // A copy of exactly that size, so that a sanitizer sees a read beyond it.
    const std::vector<std::byte> part((*full)->data().begin(),
                                      (*full)->data().begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_FALSE(GgufFile::Parse(part).ok()) << size << " of " << whole.size() << " bytes";
  }
}

TEST(GgufTest, FlippedBytesNeverReadOutside) {
  auto model = test::MakeModel({.preset = "tiny-qwen2", .type = "f16", .seed = 3});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string whole = model->ToString();
  std::mt19937_64 random(1);  // a fixed sequence: this is a smoke test beside the fuzzer
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole.substr(0, 40000);
    for (int i = 0; i < 3; ++i) {
      damaged[random() % 30000] = static_cast<char>(random());
    }
    const auto parsed = GgufFile::Parse(std::as_bytes(std::span(damaged)));
    if (parsed.ok()) {
      for (const std::string_view key : (*parsed)->Keys()) {
        (*parsed)->FindStringArray(key);
        (*parsed)->FindInt32Array(key);
      }
    }
  }
}

TEST(GgufTest, OpenNamesTheFile) {
  const auto missing = GgufFile::Open("/nonexistent/model.gguf");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(missing.status()), HasSubstr("/nonexistent/model.gguf"));
  EXPECT_EQ(GgufFile::Open(testing::TempDir()).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string empty = testing::TempDir() + "/gguf_test_empty.gguf";
  std::ofstream(empty).close();
  EXPECT_THAT(Message(GgufFile::Open(empty).status()), HasSubstr("empty"));
}

TEST(GgufTest, DroppedPagesComeBack) {
  const std::string path = testing::TempDir() + "/gguf_test_drop.gguf";
  ASSERT_TRUE(test::WriteModel({.preset = "tiny-llama", .type = "f32", .seed = 4}, path).ok());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufTensor& tensor = (*file)->tensors().front();
  const std::vector<std::byte> before(tensor.data.begin(), tensor.data.end());
  (*file)->DropFromMemory(tensor.data);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), tensor.data.begin()));
}

}  // namespace
}  // namespace cairn::compute
