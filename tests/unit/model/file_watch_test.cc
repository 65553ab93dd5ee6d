// Files that somebody writes to, cuts short or replaces while they are mapped.
#include "compute-node/model/gguf/file_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/model/forward/dense_attention.h"
#include "compute-node/model/forward/forward.h"
#include "tests/tools/model_maker.h"
#include "tests/tools/temp_dir.h"

namespace cairn::compute {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMappedBytes = 1 << 20;

// A time before any that a test can write at.
void SetOld(const std::string& path) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
}

void WriteOver(const std::string& path, std::int64_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file << bytes;
  ASSERT_TRUE(file.flush().good());
}

class FileWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = directory_.File("file");
    std::ofstream(path_, std::ios::binary) << std::string(kMappedBytes, 'x');
    SetOld(path_);
    const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    struct stat info = {};
    ASSERT_EQ(fstat(fd, &info), 0);
    void* mapped = mmap(nullptr, kMappedBytes, PROT_READ, MAP_PRIVATE, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    mapped_ = {static_cast<const std::byte*>(mapped), kMappedBytes};
    auto watch = FileWatch::Start(UniqueFd(fd), info, mapped_, "the file");
    ASSERT_TRUE(watch.ok()) << watch.status();
    watch_ = *std::move(watch);
    ASSERT_TRUE(watch_->Check().ok());
  }
  void TearDown() override {
    watch_.reset();
    munmap(const_cast<std::byte*>(mapped_.data()), mapped_.size());
  }
  void ExpectChanged(const std::string& words) {
    const absl::Status status = watch_->Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(Message(status).find(words), std::string::npos) << status;
  }

  const test::TempDir directory_;
  std::string path_;
  std::span<const std::byte> mapped_;
  std::unique_ptr<FileWatch> watch_;
};

TEST_F(FileWatchTest, AWriteShows) {
  WriteOver(path_, 5000, "y");
  ExpectChanged("the file was written to");
}

TEST_F(FileWatchTest, AnotherSizeShows) {
  WriteOver(path_, kMappedBytes, "y");
  ExpectChanged("has 1048577 bytes now instead of 1048576");
}

TEST_F(FileWatchTest, WhatIsCutOffReadsAsZerosAndShowsForEver) {
  fs::resize_file(path_, 4096);
  EXPECT_EQ(mapped_[100], std::byte{'x'});
  EXPECT_EQ(mapped_[kMappedBytes - 1], std::byte{0});
  EXPECT_EQ(mapped_[4096], std::byte{0});
  ExpectChanged("has 4096 bytes now");
  fs::resize_file(path_, kMappedBytes);
  SetOld(path_);
  ExpectChanged("could not be read");
}

TEST_F(FileWatchTest, AFileThatTakesItsPlaceDoesNotMatter) {
  const std::string other = directory_.File("other");
  std::ofstream(other, std::ios::binary) << "shorter";
  fs::rename(other, path_);
  EXPECT_TRUE(watch_->Check().ok()) << watch_->Check();
  EXPECT_EQ(mapped_[kMappedBytes - 1], std::byte{'x'});
  fs::remove(path_);
  EXPECT_TRUE(watch_->Check().ok()) << watch_->Check();
}

TEST_F(FileWatchTest, ItsModeAndNamesDoNotMatter) {
  fs::permissions(path_, fs::perms::owner_read);
  fs::create_hard_link(path_, directory_.File("link"));
  EXPECT_TRUE(watch_->Check().ok()) << watch_->Check();
}

using FileWatchDeathTest = FileWatchTest;

// A mapping that nobody watches ends the process as ever.
TEST_F(FileWatchDeathTest, OtherMappingsAreNotTouched) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // By SIGBUS, or by what AddressSanitizer makes of it.
  EXPECT_DEATH(
      {
        watch_.reset();
        fs::resize_file(path_, 4096);
        static_cast<void>(*const_cast<volatile const std::byte*>(&mapped_[kMappedBytes - 1]));
      },
      "");
}

class ChangedModelTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = directory_.File("model.gguf");
    Write(1, path_);
    SetOld(path_);
  }
  static void Write(std::uint64_t seed, const std::string& path) {
    ASSERT_TRUE(
        test::WriteModel({.preset = "tiny-qwen2", .type = "q8_0", .seed = seed}, path).ok());
  }
  // `packed`: weights in a file of their own.
  void Load(bool packed) {
    ModelOptions options;
    options.batch_tokens_max = 16;
    if (packed) options.packed_directory = directory_.path();
    options.packed_bytes_min = 1;
    auto model = Model::Load(path_, options);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  absl::Status Forward() {
    DenseAttention attention(model_->config(), KvFormat::kF16, 16, model_->pool());
    logits_.resize(static_cast<std::size_t>(model_->config().vocab_size));
    const std::vector<std::int32_t> tokens = {1, 5, 9, 200};
    return model_->Forward(tokens, 0, attention, {logits_, {}}, nullptr);
  }
  void ExpectChanged() {
    EXPECT_EQ(Forward().code(), absl::StatusCode::kFailedPrecondition) << Forward();
    EXPECT_EQ(model_->CheckIntact().code(), absl::StatusCode::kFailedPrecondition);
  }

  const test::TempDir directory_;
  std::string path_;
  std::unique_ptr<Model> model_;
  std::vector<float> logits_;
};

TEST_F(ChangedModelTest, AModelThatIsWrittenOverComputesNothingMore) {
  Load(/*packed=*/false);
  ASSERT_TRUE(Forward().ok());
  const std::string other = directory_.File("other.gguf");
  Write(2, other);
  fs::copy_file(other, path_, fs::copy_options::overwrite_existing);
  ExpectChanged();
}

TEST_F(ChangedModelTest, AModelThatIsCutShortComputesNothingMore) {
  Load(/*packed=*/false);
  fs::resize_file(path_, 4096);
  ExpectChanged();
}

TEST_F(ChangedModelTest, AModelThatIsReplacedGoesOnAsItWas) {
  Load(/*packed=*/false);
  ASSERT_TRUE(Forward().ok());
  const std::vector<float> before = logits_;
  const std::string other = directory_.File("other.gguf");
  Write(2, other);
  fs::rename(other, path_);
  ASSERT_TRUE(Forward().ok());
  EXPECT_EQ(logits_, before);
}

TEST_F(ChangedModelTest, PackedWeightsThatAreWrittenToComputeNothingMore) {
  Load(/*packed=*/true);
  model_.reset();
  std::string packed;
  for (const auto& entry : fs::directory_iterator(directory_.path())) {
    if (entry.path().filename().string().starts_with("packed-")) packed = entry.path();
  }
  ASSERT_NE(packed, "");
  SetOld(packed);
  Load(/*packed=*/true);
  ASSERT_TRUE(Forward().ok());
  WriteOver(packed, kPackedDataAt + 100, "y");
  ExpectChanged();
}

}  // namespace
}  // namespace cairn::compute
