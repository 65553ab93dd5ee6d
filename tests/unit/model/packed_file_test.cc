#include "compute-node/model/forward/packed_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"
#include "compute-node/model/gguf/model_digest.h"
#include "tests/tools/model_maker.h"

namespace cairn::compute {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PackedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}packed_file_test_{}", testing::TempDir(), ::getpid());
    fs::remove_all(directory_);
    model_path_ = directory_ + ".gguf";
    ASSERT_TRUE(
        test::WriteModel({.preset = "tiny-qwen2", .type = "q4_k_m", .seed = 3}, model_path_).ok());
  }
  void TearDown() override {
    fs::remove_all(directory_);
    fs::remove(model_path_);
  }

  // The logits of a few tokens, with packed weights in `directory`.
  std::vector<float> Logits(const std::string& directory) {
    ModelOptions options;
    options.batch_tokens_max = 16;
    options.packed_directory = directory;
    options.packed_bytes_min = 1;
    std::int64_t done = 0;
    std::int64_t total = -1;
    options.progress = [&](std::int64_t done_bytes, std::int64_t total_bytes) {
      done = done_bytes;
      total = total_bytes;
    };
    const auto model = Model::Load(model_path_, options);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    EXPECT_EQ(done, total);
    DenseAttention attention((*model)->config(), KvFormat::kF16, 16, (*model)->pool());
    std::vector<float> logits(static_cast<std::size_t>((*model)->config().vocab_size));
    const std::vector<std::int32_t> tokens = {1, 5, 9, 200};
    EXPECT_TRUE((*model)->Forward(tokens, 0, attention, {logits, {}}, nullptr).ok());
    return logits;
  }

  std::string PackedPath() const {
    return PackedFilePath(directory_, ModelDigestWithCache({model_path_}, "").value());
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      names.push_back(entry.path().string());
    }
    return names;
  }
  // When the file was made: its inode number changes with it.
  std::uint64_t Identity() const {
    struct stat info = {};
    EXPECT_EQ(::stat(PackedPath().c_str(), &info), 0);
    return info.st_ino ^ (static_cast<std::uint64_t>(info.st_ctim.tv_nsec) << 20);
  }

  std::string directory_;
  std::string model_path_;
};

TEST_F(PackedFileTest, IsMadeOnceAndGivesTheSameBits) {
  const std::vector<float> expected = Logits("");
  EXPECT_FALSE(fs::exists(directory_));
  EXPECT_EQ(Logits(directory_), expected);
  EXPECT_THAT(Files(), testing::ElementsAre(PackedPath()));
  const std::uint64_t made = Identity();
  EXPECT_EQ(Logits(directory_), expected);
  EXPECT_EQ(Identity(), made);
  fs::remove_all(directory_);
  EXPECT_EQ(Logits(directory_), expected);
}

TEST_F(PackedFileTest, DamageAnywhereIsFoundAndTheFileMadeAnew) {
  const std::vector<float> expected = Logits(directory_);
  const auto size = static_cast<std::int64_t>(fs::file_size(PackedPath()));
  for (const std::int64_t at :
       {std::int64_t{0}, std::int64_t{9}, std::int64_t{20}, std::int64_t{60}, kPackedDataAt,
        kPackedDataAt + 12345, size - 5, size - 1}) {
    SCOPED_TRACE(at);
    {
      std::fstream file(PackedPath(), std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(at);
      const auto byte = static_cast<char>(file.get() ^ 0x10);
      file.seekp(at);
      file.put(byte);
    }
    const std::uint64_t damaged = Identity();
    EXPECT_EQ(Logits(directory_), expected);
    EXPECT_NE(Identity(), damaged);
    EXPECT_EQ(Files().size(), 1U);
  }
  for (const std::int64_t length : {std::int64_t{0}, std::int64_t{30}, size - 1, size + 1}) {
    SCOPED_TRACE(length);
    fs::resize_file(PackedPath(), static_cast<std::uintmax_t>(length));
    EXPECT_EQ(Logits(directory_), expected);
    EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(PackedPath())), size);
  }
}

TEST_F(PackedFileTest, AFileOfAnotherModelIsNotTaken) {
  const std::vector<float> expected = Logits(directory_);
  const std::string first = PackedPath();
  ASSERT_TRUE(
      test::WriteModel({.preset = "tiny-qwen2", .type = "q4_k_m", .seed = 4}, model_path_).ok());
  fs::rename(first, PackedPath());
  const std::vector<float> other = Logits(directory_);
  EXPECT_NE(other, expected);
  EXPECT_EQ(other, Logits(""));
}

TEST_F(PackedFileTest, WhatIsNoFileIsNotWaitedFor) {
  const std::vector<float> expected = Logits("");
  fs::create_directories(directory_);
  ASSERT_EQ(mkfifo(PackedPath().c_str(), S_IRUSR | S_IWUSR), 0);
  EXPECT_EQ(Logits(directory_), expected);
  EXPECT_TRUE(fs::is_regular_file(PackedPath()));
  fs::remove(PackedPath());
  fs::create_directories(PackedPath() + "/not-empty");
  EXPECT_EQ(Logits(directory_), expected);
}

TEST_F(PackedFileTest, WithoutAFolderThatCanBeWrittenTheModelStillRuns) {
  const std::vector<float> expected = Logits("");
  std::ofstream(directory_) << "a file";
  EXPECT_EQ(Logits(directory_), expected);
  EXPECT_EQ(Logits("/proc/no-such-folder"), expected);
  EXPECT_EQ(Logits("/tmp/" + std::string(300, 'n')), expected);
}

TEST_F(PackedFileTest, AModelWithANanIsRefusedAndLeavesNoFile) {
  {
    // The scale of the file's last block of weights, whichever type it is of, and what is around.
    std::fstream file(model_path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-4096, std::ios::end);
    const std::string nans(4096, '\xff');
    file << nans;
  }
  ModelOptions options;
  options.packed_directory = directory_;
  options.packed_bytes_min = 1;
  const absl::Status status = Model::Load(model_path_, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(!fs::exists(directory_) || Files().empty());
}

// A copy over the model, say, while it is packed: what is kept would be of both.
TEST_F(PackedFileTest, AModelThatIsWrittenToMeanwhileIsRefusedAndLeavesNoFile) {
  ModelOptions options;
  options.packed_directory = directory_;
  options.packed_bytes_min = 1;
  options.progress = [&](std::int64_t, std::int64_t) {
    std::ofstream(model_path_, std::ios::binary | std::ios::app) << '\0';
  };
  const absl::Status status = Model::Load(model_path_, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Message(status), HasSubstr(model_path_));
  EXPECT_TRUE(Files().empty());
}

TEST_F(PackedFileTest, TheDigestIsThatOfTheModelThatWasLoaded) {
  const std::string digest = ModelDigestWithCache({model_path_}, "").value();
  for (const bool packed : {false, true}) {
    ModelOptions options;
    options.packed_directory = packed ? directory_ : "";
    options.packed_bytes_min = 1;
    const auto model = Model::Load(model_path_, options);
    ASSERT_TRUE(model.ok()) << model.status();
    const std::string other = model_path_ + ".other";
    fs::copy_file(model_path_, other);
    fs::rename(other, model_path_);
    // Known from loading, or no longer to be had.
    if (packed) {
      EXPECT_EQ((*model)->Digest().value(), digest);
    } else {
      EXPECT_EQ((*model)->Digest().status().code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST_F(PackedFileTest, TwoThatLoadAtOnceBothGetIt) {
  auto other = std::async(std::launch::async, [&] { return Logits(directory_); });
  const std::vector<float> mine = Logits(directory_);
  EXPECT_EQ(other.get(), mine);
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(PackedFileTest, AnUnfinishedFileHasNoName) {
  const PackedKey key{std::string(kModelDigestBytes, 'd'), 7, 3 * kPackedChunkBytes};
  {
    const auto writer = PackedFileWriter::Create(directory_, key);
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<std::byte> some(100);
    ASSERT_TRUE((*writer)->Append(some).ok());
  }
  EXPECT_TRUE(Files().empty());
}

TEST_F(PackedFileTest, MoreThanTheFileSystemHoldsIsRefusedBeforeAnythingIsWritten) {
  const PackedKey key{std::string(kModelDigestBytes, 'd'), 7, std::int64_t{1} << 60};
  const absl::Status status = PackedFileWriter::Create(directory_, key).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("are free"));
}

}  // namespace
}  // namespace cairn::compute
