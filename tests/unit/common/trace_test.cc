#include "common/trace/trace.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "common/io/checksum.h"
#include "tests/tools/rng.h"
#include "tests/tools/seed.h"
#include "tests/tools/temp_dir.h"

namespace cairn {
namespace {

// Offsets of fields in a file: docs/trace-format.md.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kFirstCountAt = 12;
constexpr std::size_t kTokenCountAt = 36;
constexpr std::size_t kReservedAt = 52;
constexpr std::size_t kHeaderBytes = 56;

Trace SmallTrace() {
  Trace trace;
  trace.layer_count = 6;
  trace.kv_head_count = 4;
  trace.group_size = 2;
  trace.head_dim = 3;
  trace.layers = {1, 5};
  trace.kv_heads = {0, 3};
  trace.token_count = 7;
  trace.prompt_count = 4;
  trace.steps = {4, 6};
  trace.origin = "made by hand";
  trace.keys.resize(static_cast<std::size_t>(trace.key_value_count()));
  trace.queries.resize(static_cast<std::size_t>(trace.query_value_count()));
  for (std::size_t i = 0; i < trace.keys.size(); ++i) trace.keys[i] = static_cast<uint16_t>(i);
  for (std::size_t i = 0; i < trace.queries.size(); ++i) {
    trace.queries[i] = static_cast<uint16_t>(1000 + i);
  }
  return trace;
}

std::uint32_t NumberAt(const std::string& bytes, std::size_t at) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// Sets a number and makes the checksum right again.
std::string WithNumber(std::string bytes, std::size_t at, std::uint32_t number) {
  std::memcpy(bytes.data() + at, &number, sizeof(number));
  const std::size_t size = bytes.size() - 4;
  const std::uint32_t crc = Crc32c(std::as_bytes(std::span(bytes.data(), size)));
  std::memcpy(bytes.data() + size, &crc, sizeof(crc));
  return bytes;
}

absl::StatusCode Code(const std::string& bytes) { return DecodeTrace(bytes).status().code(); }

TEST(TraceTest, WhatIsWrittenIsRead) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/small.trace";
  const Trace trace = SmallTrace();
  ASSERT_TRUE(WriteTraceFile(path, trace).ok());
  const absl::StatusOr<Trace> read = ReadTraceFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, trace);
}

TEST(TraceTest, RowsAreFoundByWhatWasRecorded) {
  const Trace trace = SmallTrace();
  // Key (layer 5, KV head 0, token 2): behind two heads of the first layer, and two tokens.
  EXPECT_EQ(trace.Key(1, 0, 2)[0], (2 * 7 + 2) * 3);
  EXPECT_EQ(trace.Key(1, 0, 2).size(), 3u);
  // Queries of the second step, first layer, second head: behind four pairs and one.
  EXPECT_EQ(trace.Queries(1, 0, 1)[0], 1000 + (4 + 1) * 2 * 3);
  EXPECT_EQ(trace.Queries(1, 0, 1).size(), 6u);
}

// docs/trace-format.md shows this file.
TEST(TraceTest, TheBytesAreTheDocumentedOnes) {
  Trace trace;
  trace.layer_count = 5;
  trace.kv_head_count = 2;
  trace.group_size = 1;
  trace.head_dim = 2;
  trace.layers = {3};
  trace.kv_heads = {1};
  trace.token_count = 2;
  trace.prompt_count = 1;
  trace.steps = {1};
  trace.origin = "x";
  trace.keys = {0x3c00, 0x4000, 0xbc00, 0};
  trace.queries = {0x3800, 0x3c00};
  std::string hex;
  for (const char c : EncodeTrace(trace)) hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
  constexpr std::size_t kListBytes = 3 * sizeof(std::uint32_t);
  constexpr std::size_t kNumberBytes = 6 * sizeof(std::uint16_t);
  constexpr std::size_t kCheckedBytes = kHeaderBytes + 1 + kListBytes + kNumberBytes;
  EXPECT_EQ(hex.substr(0, 2 * kCheckedBytes),
            "434149524e545243"  // magic
            "01000000"          // version
            "05000000"
            "02000000"
            "01000000"
            "02000000"  // the model
            "01000000"
            "01000000"
            "02000000"
            "01000000"
            "01000000"  // what was recorded
            "01000000"
            "00000000"  // origin, reserved
            "78"        // "x"
            "03000000"
            "01000000"
            "01000000"  // layer, KV head, step
            "003c0040"
            "00bc0000"    // two keys
            "0038003c");  // one query
  EXPECT_EQ(hex.size(), 2 * (kCheckedBytes + sizeof(std::uint32_t)));
}

TEST(TraceTest, AFileCutAnywhereIsRefused) {
  const std::string bytes = EncodeTrace(SmallTrace());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(Code(bytes.substr(0, size)), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_EQ(Code(bytes + "x"), absl::StatusCode::kInvalidArgument);
}

TEST(TraceTest, AnyDamagedByteIsFound) {
  const std::string bytes = EncodeTrace(SmallTrace());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_FALSE(DecodeTrace(damaged).ok()) << at;
  }
}

TEST(TraceTest, AnotherVersionIsToldApartFromDamage) {
  const std::string bytes = EncodeTrace(SmallTrace());
  EXPECT_EQ(Code(WithNumber(bytes, kVersionAt, 2)), absl::StatusCode::kFailedPrecondition);
}

TEST(TraceTest, HostileCountsAreRefusedBeforeMemoryIsTaken) {
  const std::string bytes = EncodeTrace(SmallTrace());
  for (std::size_t at = kFirstCountAt; at < kHeaderBytes; at += 4) {
    for (const std::uint32_t number : {0U, 0x7fffffffU, 0x80000000U, 0xffffffffU, 1048576U}) {
      if (number == NumberAt(bytes, at)) continue;
      // A smaller prompt and a larger model are other traces, not wrong ones.
      if (at == kTokenCountAt + 4 && number == 0) continue;
      EXPECT_EQ(Code(WithNumber(bytes, at, number)), absl::StatusCode::kInvalidArgument)
          << at << " " << number;
    }
  }
  EXPECT_EQ(Code(WithNumber(bytes, kReservedAt, 1)), absl::StatusCode::kInvalidArgument);
}

TEST(TraceTest, ListsAreAscendingAndOfTheModel) {
  const std::string bytes = EncodeTrace(SmallTrace());
  const std::size_t lists = kHeaderBytes + SmallTrace().origin.size();
  for (const std::size_t second : {lists + 4, lists + 12, lists + 20}) {
    const std::uint32_t first = NumberAt(bytes, second - 4);
    EXPECT_EQ(Code(WithNumber(bytes, second, first)), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Code(WithNumber(bytes, second, 7)), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Code(WithNumber(bytes, second, 0xffffffffU)), absl::StatusCode::kInvalidArgument);
  }
}

TEST(TraceTest, RandomBytesNeverMakeATraceThatIsNotValid) {
  test::Rng rng(test::TestSeed());
  const std::string bytes = EncodeTrace(SmallTrace());
  for (int round = 0; round < 20000; ++round) {
    const std::size_t at = rng.Below(bytes.size() - 8);
    const absl::StatusOr<Trace> trace =
        DecodeTrace(WithNumber(bytes, at, static_cast<std::uint32_t>(rng.Next() >> rng.Below(32))));
    if (!trace.ok()) continue;
    EXPECT_TRUE(trace->Validate().ok());
    EXPECT_EQ(EncodeTrace(*trace).size(), bytes.size());
  }
}

TEST(TraceTest, ATraceWithAMissingRowIsNotWritten) {
  Trace trace = SmallTrace();
  trace.keys.pop_back();
  EXPECT_EQ(trace.Validate().code(), absl::StatusCode::kInvalidArgument);
  const test::TempDir dir;
  EXPECT_FALSE(WriteTraceFile(dir.path() + "/no.trace", trace).ok());
  EXPECT_EQ(ReadTraceFile(dir.path() + "/no.trace").status().code(), absl::StatusCode::kNotFound);
}

TEST(TraceTest, AMessageNamesTheFile) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/text.trace";
  std::ofstream(path) << "no trace";
  EXPECT_NE(Message(ReadTraceFile(path).status()).find(path), std::string::npos);
}

}  // namespace
}  // namespace cairn
