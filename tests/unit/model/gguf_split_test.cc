// Models in several files: which sets are one model, and which are refused with which words.
#include "compute-node/model/gguf/gguf_split.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute-node/model/forward/forward.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/temp_dir.h"

namespace cairn::compute {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

class GgufSplitTest : public testing::Test {
 protected:
  static test::GgufWriter MakeWriter(std::uint64_t seed = 1, const std::string& type = "q8_0") {
    auto model = test::MakeModel({.preset = "narrow-llama", .type = type, .seed = seed});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  std::vector<std::string> WriteParts(const test::GgufWriter& model, std::int64_t count,
                                      const std::string& name = "m") const {
    std::vector<std::string> paths;
    EXPECT_TRUE(model.WriteParts(folder_.File(name), count, paths).ok());
    return paths;
  }
  // Opening any part must be refused, with all of `words`.
  static void ExpectRefused(const std::vector<std::string>& paths, absl::StatusCode code,
                            const std::vector<std::string>& words) {
    for (const std::string& path : paths) {
      if (!std::filesystem::exists(path)) continue;
      const auto file = GgufFile::Open(path);
      ASSERT_FALSE(file.ok()) << path;
      EXPECT_EQ(file.status().code(), code) << file.status();
      for (const std::string& word : words) {
        EXPECT_THAT(Message(file.status()), HasSubstr(word));
      }
    }
  }
  static void ExpectInvalid(const std::vector<std::string>& paths,
                            const std::vector<std::string>& words) {
    ExpectRefused(paths, absl::StatusCode::kInvalidArgument, words);
  }

  test::TempDir folder_;
};

TEST_F(GgufSplitTest, AnyPartOpensTheWholeModel) {
  const test::GgufWriter model = MakeWriter();
  const std::string whole_path = folder_.File("whole.gguf");
  ASSERT_TRUE(model.WriteFile(whole_path).ok());
  const auto whole = GgufFile::Open(whole_path);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT((*whole)->paths(), ElementsAreArray({whole_path}));
  const std::vector<std::string> paths = WriteParts(model, 3);
  for (const std::string& path : paths) {
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->path(), paths.front());
    EXPECT_EQ((*file)->paths(), paths);
    EXPECT_TRUE((*file)->Has("llama.block_count"));
    ASSERT_EQ((*file)->tensors().size(), (*whole)->tensors().size());
    for (const GgufTensor& expected : (*whole)->tensors()) {
      const GgufTensor* tensor = (*file)->FindTensor(expected.name);
      ASSERT_NE(tensor, nullptr) << expected.name;
      EXPECT_TRUE(std::equal(tensor->data.begin(), tensor->data.end(), expected.data.begin(),
                             expected.data.end()));
      // Of whichever part the bytes are, they come back.
      (*file)->DropFromMemory(tensor->data);
      EXPECT_EQ(tensor->data[0], expected.data[0]);
    }
    std::uintmax_t bytes = 0;
    for (const std::string& part : paths) {
      bytes += std::filesystem::file_size(part);
    }
    EXPECT_EQ((*file)->byte_count(), static_cast<std::int64_t>(bytes));
  }
}

TEST_F(GgufSplitTest, ASplitModelLoadsAndItsDigestCoversEveryPart) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 3);
  const auto digest = [&] {
    const auto model = Model::Load(paths[1], {});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->Digest().value_or("") : "";
  };
  const std::string before = digest();
  EXPECT_EQ(before.size(), 32U);
  // The last byte of the last part is padding or a weight: nothing is refused.
  std::fstream last(paths[2], std::ios::binary | std::ios::in | std::ios::out);
  last.seekp(-40, std::ios::end);
  last.put('\1');
  last.close();
  EXPECT_NE(digest(), before);
}

TEST_F(GgufSplitTest, AFirstPartWithoutTensorsIsFine) {
  // More parts than tensors: some are empty.
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 60);
  const auto file = GgufFile::Open(paths[59]);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 21U);
}

TEST_F(GgufSplitTest, AMissingPartIsNamed) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 3);
  std::filesystem::remove(paths[1]);
  ExpectRefused(paths, absl::StatusCode::kNotFound, {paths[1], "part 2 of 3", "No such file"});
}

TEST_F(GgufSplitTest, ATruncatedPartIsNamed) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 3);
  std::filesystem::resize_file(paths[2], std::filesystem::file_size(paths[2]) - 100);
  ExpectInvalid(paths, {paths[2], "truncated"});
}

TEST_F(GgufSplitTest, ARenamedPartIsRefused) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 3);
  const std::string other = folder_.File("other.gguf");
  std::filesystem::copy(paths[1], other);
  ExpectInvalid({other}, {other, "part 2 of 3", "-00002-of-00003.gguf"});
  // Under another part's name: found whichever part is opened.
  std::filesystem::rename(other, paths[2]);
  ExpectInvalid({paths[0], paths[1]}, {paths[2], "split.no is 1", "must be 2"});
  ExpectInvalid({paths[2]}, {paths[2], "part 2 of 3"});
}

TEST_F(GgufSplitTest, MixedSetsAreRefused) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 3);
  // Another number of parts under the same names.
  ASSERT_TRUE(MakeWriter().Part(1, 4).WriteFile(paths[1]).ok());
  ExpectInvalid({paths[0], paths[2]}, {paths[1], "split.count is 4", "must be 3"});
  // Another number of tensors.
  test::GgufWriter more = MakeWriter();
  more.AddTensor("more", {32}, test::TensorType::kF32, [](std::int64_t, std::span<float>) {});
  ASSERT_TRUE(more.Part(1, 3).WriteFile(paths[1]).ok());
  ExpectInvalid({paths[0], paths[2]}, {paths[1], "split.tensors.count is 22", "must be 21"});
  // Metadata that says something else.
  test::GgufWriter other = MakeWriter().Part(1, 3);
  other.AddString("general.name", "another");
  ASSERT_TRUE(other.WriteFile(paths[1]).ok());
  ExpectInvalid(paths, {paths[1], "key 'general.name' differs", "mixed"});
  // The same metadata again is harmless.
  test::GgufWriter same = MakeWriter().Part(1, 3);
  same.AddString("general.name", "narrow-llama-random-1");
  ASSERT_TRUE(same.WriteFile(paths[1]).ok());
  EXPECT_TRUE(GgufFile::Open(paths[0]).ok());
}

TEST_F(GgufSplitTest, ATensorInTwoPartsIsRefused) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 2);
  test::GgufWriter doubled = MakeWriter().Part(1, 2);
  doubled.AddTensor("token_embd.weight", {32}, test::TensorType::kF32,
                    [](std::int64_t, std::span<float>) {});
  ASSERT_TRUE(doubled.WriteFile(paths[1]).ok());
  ExpectInvalid(paths, {paths[1], "'token_embd.weight' is in an earlier part"});
}

TEST_F(GgufSplitTest, TheTensorsMustBeAsManyAsTheKeySays) {
  const std::vector<std::string> paths = WriteParts(MakeWriter(), 2);
  test::GgufWriter more = MakeWriter().Part(1, 2);
  more.AddTensor("more", {32}, test::TensorType::kF32, [](std::int64_t, std::span<float>) {});
  ASSERT_TRUE(more.WriteFile(paths[1]).ok());
  ExpectInvalid(paths, {paths[0], "22 tensors together", "split.tensors.count is 21"});
}

// What merging leaves: a count of 0 and the number of tensors.
TEST_F(GgufSplitTest, AMergedFileIsWholeOrRefused) {
  test::GgufWriter merged = MakeWriter();
  merged.AddU32("split.count", 0);
  merged.AddU32("split.tensors.count", 21);
  const std::string path = folder_.File("merged.gguf");
  ASSERT_TRUE(merged.WriteFile(path).ok());
  EXPECT_TRUE(GgufFile::Open(path).ok());
  merged.AddTensor("more", {32}, test::TensorType::kF32, [](std::int64_t, std::span<float>) {});
  ASSERT_TRUE(merged.WriteFile(path).ok());
  ExpectInvalid({path}, {path, "has 22 tensors, but split.tensors.count is 21"});
}

TEST_F(GgufSplitTest, ImpossibleKeysAreRefused) {
  const std::string path = folder_.File("m-00001-of-00003.gguf");
  const auto write = [&](std::uint32_t number, std::uint32_t count) {
    test::GgufWriter model = MakeWriter();
    model.AddU32("split.no", number);
    model.AddU32("split.count", count);
    ASSERT_TRUE(model.WriteFile(path).ok());
  };
  write(3, 3);
  ExpectInvalid({path}, {path, "part 3 of 3"});
  write(0, 100000);
  ExpectInvalid({path}, {path, "1024 parts at most"});
  write(0xffffffff, 0);
  ExpectInvalid({path}, {path, "part 4294967295 of 0"});
  test::GgufWriter model = MakeWriter();
  model.AddString("split.count", "three");
  ASSERT_TRUE(model.WriteFile(path).ok());
  ExpectInvalid({path}, {path, "'split.count' is no count"});
}

TEST(GgufSplitNameTest, OnlyWholeNamesAreParts) {
  const auto name = ParseGgufSplitName("/a-b/c-00002-of-00012.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->prefix, "/a-b/c");
  EXPECT_EQ(name->number, 2);
  EXPECT_EQ(name->count, 12);
  EXPECT_EQ(name->Path(11), "/a-b/c-00011-of-00012.gguf");
  for (const char* other :
       {"", "m.gguf", "m-2-of-12.gguf", "m-00002-of-00012", "m-00002-of-00001.gguf",
        "m-00000-of-00001.gguf", "m-0000a-of-00012.gguf", "m-00002-0f-00012.gguf",
        "m.00002-of-00012.gguf", "00002-of-00012.gguf"}) {
    EXPECT_FALSE(ParseGgufSplitName(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace cairn::compute
