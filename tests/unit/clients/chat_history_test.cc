#include "clients/cairn/chat_history.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/temp_dir.h"

namespace cairn::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ChatHistoryTest : public testing::Test {
 protected:
  // As a chat that starts now finds it.
  std::vector<std::string> Found() const {
    const auto inputs = ChatHistory(path_).Load();
    EXPECT_TRUE(inputs.ok()) << inputs.status();
    return inputs.value_or(std::vector<std::string>());
  }

  const test::TempDir directory_;
  const std::string path_ = directory_.File("state/cairn/chat_history");
};

TEST_F(ChatHistoryTest, InputsComeBackAsTheyWere) {
  EXPECT_TRUE(Found().empty());
  ChatHistory history(path_);
  const std::string odd = "two\nlines \\n \\\\ \t \r ü \xff\n";
  ASSERT_TRUE(history.Add("first").ok());
  ASSERT_TRUE(history.Add(odd).ok());
  EXPECT_THAT(Found(), ElementsAre("first", odd));
  ASSERT_TRUE(ChatHistory(path_).Add("of another chat").ok());
  ASSERT_TRUE(history.Add("third").ok());
  EXPECT_THAT(Found(), ElementsAre("first", odd, "of another chat", "third"));
}

TEST_F(ChatHistoryTest, OnlyTheOwnerMayReadIt) {
  std::filesystem::create_directories(directory_.File("state/cairn"));
  std::ofstream(path_) << "old\n";
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  ASSERT_TRUE(ChatHistory(path_).Add("new").ok());
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_THAT(Found(), ElementsAre("old", "new"));
}

TEST_F(ChatHistoryTest, FolderIsMadeForTheOwnerAlone) {
  ASSERT_TRUE(ChatHistory(path_).Add("new").ok());
  struct stat info {};
  ASSERT_EQ(::stat(directory_.File("state/cairn").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(ChatHistoryTest, NothingIsKeptTwiceOrEmptyOrTooLarge) {
  ChatHistory history(path_);
  for (const std::string& input :
       {std::string("a"), std::string("a"), std::string(),
        std::string(static_cast<std::size_t>(kHistoryInputBytesMax) + 1, 'x'), std::string("b")}) {
    ASSERT_TRUE(history.Add(input).ok());
  }
  EXPECT_THAT(Found(), ElementsAre("a", "b"));
}

TEST_F(ChatHistoryTest, FileIsBoundedAndKeepsTheNewest) {
  ChatHistory history(path_);
  const std::string large(static_cast<std::size_t>(kHistoryInputBytesMax) - 8, 'x');
  constexpr int kCount = 200;  // more than three times as much as the file holds
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(history.Add(large + std::to_string(i)).ok());
    ASSERT_LE(std::filesystem::file_size(path_), kHistoryFileBytesMax + kHistoryInputBytesMax);
  }
  const std::vector<std::string> found = Found();
  ASSERT_GT(found.size(), 16U);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[found.size() - 1 - i], large + std::to_string(kCount - 1 - i)) << i;
  }
  // And nothing else is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.File("state/cairn")), {}),
            1);
}

TEST_F(ChatHistoryTest, ManyInputsAreCutToTheNewest) {
  std::filesystem::create_directories(directory_.File("state/cairn"));
  std::ofstream file(path_);
  for (int i = 0; i < kHistoryInputsMax + 5; ++i) file << i << "\n";
  file << "torn";  // its line end did not come
  file.close();
  const std::vector<std::string> found = Found();
  ASSERT_EQ(found.size(), static_cast<std::size_t>(kHistoryInputsMax));
  EXPECT_EQ(found.front(), "5");
  EXPECT_EQ(found.back(), std::to_string(kHistoryInputsMax + 4));
}

TEST_F(ChatHistoryTest, WhatIsNoFileIsAnErrorWithItsPath) {
  std::filesystem::create_directories(path_);
  EXPECT_THAT(Message(ChatHistory(path_).Load().status()), HasSubstr(path_ + ": Is a directory"));
  EXPECT_THAT(Message(ChatHistory(path_).Add("a")), HasSubstr(path_ + ": Is a directory"));
}

TEST_F(ChatHistoryTest, WithoutAHomeNothingIsKept) {
  ChatHistory history("");
  EXPECT_TRUE(history.Add("a").ok());
  EXPECT_TRUE(history.Load().value().empty());
}

}  // namespace
}  // namespace cairn::cli
