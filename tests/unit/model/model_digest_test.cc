#include "compute-node/model/gguf/model_digest.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "common/base/random_bytes.h"
#include "tests/tools/file_bytes.h"

namespace cairn::compute {
namespace {

// SHA-256 of "abc", from FIPS 180-2.
constexpr char kAbcDigest[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class ModelDigestTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    Write(file_, "abc");
  }
  static void Write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string Digest() {
    const auto digest = ModelDigestWithCache({file_}, cache_);
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.ok() ? ToHex(*digest) : "";
  }
  std::filesystem::path CacheFile() {
    for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
      return entry.path();
    }
    return {};
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) / "model_digest_test";
  const std::string file_ = directory_ / "model.gguf";
  const std::string cache_ = directory_ / "cache";
};

TEST_F(ModelDigestTest, IsTheSha256OfTheFile) {
  EXPECT_EQ(Digest(), kAbcDigest);
  EXPECT_EQ(ToHex(*ModelDigestWithCache({file_}, "")), kAbcDigest);
}

TEST_F(ModelDigestTest, TheCacheIsUsed) {
  Digest();
  std::string text = test::BytesOfFile(CacheFile());
  ASSERT_FALSE(text.empty());
  // A well-formed but different digest shows where the answer comes from.
  const std::size_t at = text.find(kAbcDigest);
  ASSERT_NE(at, std::string::npos);
  text[at] = 'c';
  Write(CacheFile(), text);
  EXPECT_EQ(Digest()[0], 'c');
}

TEST_F(ModelDigestTest, ADamagedCacheIsComputedAgain) {
  Digest();
  const std::string text = test::BytesOfFile(CacheFile());
  for (const std::string& damaged :
       {std::string(), std::string("nonsense"), text.substr(0, text.size() - 5),
        std::string(text.size(), 'x'), text.substr(0, text.size() - 4) + " +5\n"}) {
    Write(CacheFile(), damaged);
    EXPECT_EQ(Digest(), kAbcDigest);
    EXPECT_EQ(test::BytesOfFile(CacheFile()), text);
  }
}

TEST_F(ModelDigestTest, AChangedFileIsHashedAgain) {
  Digest();
  Write(file_, "abcd");
  EXPECT_NE(Digest(), kAbcDigest);
}

// Copies that keep the time of modification, into the file or under a reused inode number.
TEST_F(ModelDigestTest, AFileOfTheSameSizeAndTimeIsHashedAgain) {
  Digest();
  const auto modified = std::filesystem::last_write_time(file_);
  Write(file_, "abd");
  std::filesystem::last_write_time(file_, modified);
  EXPECT_NE(Digest(), kAbcDigest);
}

TEST_F(ModelDigestTest, APipeInTheCacheIsNotWaitedFor) {
  Digest();
  const std::filesystem::path pipe = CacheFile();
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR), 0);
  EXPECT_EQ(Digest(), kAbcDigest);
  EXPECT_TRUE(std::filesystem::is_regular_file(pipe));
}

TEST_F(ModelDigestTest, AnUnwritableCacheDoesNotMatter) {
  EXPECT_EQ(ToHex(*ModelDigestWithCache({file_}, file_ + "/not-a-directory")), kAbcDigest);
}

// Stored conversations are found by it: the value is for ever. Computed beforehand, with Python:
// sha256(b"cairn-split-model 1\n" + sha256(b"abc").digest() + sha256(b"def").digest()).
TEST_F(ModelDigestTest, ASplitModelsCoversAllPartsInOrder) {
  const std::string second = directory_ / "second.gguf";
  Write(second, "def");
  const auto digest = [&](const std::vector<std::string>& paths) {
    return ToHex(*ModelDigestWithCache(paths, cache_));
  };
  EXPECT_EQ(digest({file_, second}),
            "34fba5866a92f6962ce7ae57acc696693f60994649bf3ec6cbf3e5325cb4483c");
  EXPECT_EQ(digest({file_, second}), digest({file_, second}));  // from the cache
  EXPECT_NE(digest({second, file_}), digest({file_, second}));
  EXPECT_EQ(digest({file_}), kAbcDigest);
  Write(second, "deg2");
  EXPECT_NE(digest({file_, second}),
            "34fba5866a92f6962ce7ae57acc696693f60994649bf3ec6cbf3e5325cb4483c");
}

TEST_F(ModelDigestTest, AMissingFileIsAnError) {
  EXPECT_EQ(ModelDigestWithCache({file_, directory_ / "none"}, cache_).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ModelDigestWithCache({directory_ / "none"}, cache_).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace cairn::compute
