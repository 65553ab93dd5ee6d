// A real cairn-kv-node whose configuration asks for another size of the extent file.
#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/kv_node_start_fixture.h"

namespace cairn::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class KvNodeResizeTest : public KvNodeStartTest {
 protected:
  void SetSize(std::int64_t bytes) { node_.SetConfig("extent_file_bytes", std::to_string(bytes)); }
  std::int64_t Size() const { return static_cast<std::int64_t>(fs::file_size(ExtentFile())); }
  void ExpectSize(std::int64_t bytes) {
    ASSERT_NO_FATAL_FAILURE(ExpectConversation());
    EXPECT_EQ(Size(), bytes);
    EXPECT_EQ(node_.Stop().value_or(-1), 0);
  }
  // The conversation lies behind free space, which another one has left.
  void MakeConversationBehind(std::int64_t tokens_before) {
    ASSERT_TRUE(node_.Start().ok());
    auto node = compute::GrpcKvNode::Connect(node_.socket_path(), {});
    ASSERT_TRUE(node.ok()) << node.status();
    const auto before = (*node)->Create(Talk::Request());
    ASSERT_TRUE(before.ok()) << before.status();
    {
      const auto session = (*node)->Open(*before);
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE(Talk::Append(session->get(), 0, tokens_before).ok());
      ASSERT_TRUE(Talk::TakeCheckpoint(session->get(), tokens_before, 0).ok());
    }
    ASSERT_NO_FATAL_FAILURE(Converse());
    ASSERT_TRUE((*node)->Delete(*before).ok());
    ASSERT_EQ(node_.Stop().value_or(-1), 0);
  }
};

TEST_F(KvNodeResizeTest, AStoreGrowsAndKeepsItsSizeWithoutTheKey) {
  SetSize(4 * kMiB);
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  SetSize(9 * kMiB + 100);
  ASSERT_NO_FATAL_FAILURE(ExpectSize(9 * kMiB));
  SetSize(0);
  ASSERT_NO_FATAL_FAILURE(ExpectSize(9 * kMiB));
}

TEST_F(KvNodeResizeTest, AStoreShrinksAndItsConversationsMoveToTheFront) {
  SetSize(8 * kMiB);
  ASSERT_NO_FATAL_FAILURE(MakeConversationBehind(12000));
  SetSize(kMiB);
  ASSERT_NO_FATAL_FAILURE(ExpectSize(kMiB));
  const std::string& said = node_.process().output();
  const std::string moved = "moved file=" + ExtentFile() + " bytes=";
  ASSERT_NE(said.find(moved), std::string::npos) << said;
  EXPECT_NE(said[said.find(moved) + moved.size()], '0') << said;
}

TEST_F(KvNodeResizeTest, AStoreThatDoesNotFitIsRefusedWithWhatItNeeds) {
  SetSize(16 * kMiB);
  ASSERT_TRUE(node_.Start().ok());
  {
    auto node = compute::GrpcKvNode::Connect(node_.socket_path(), {});
    ASSERT_TRUE(node.ok()) << node.status();
    session_ = (*node)->Create(Talk::Request()).value_or(SessionRef());
    const auto session = (*node)->Open(session_);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE(Talk::Append(session->get(), 0, 12000).ok());
    ASSERT_TRUE(Talk::TakeCheckpoint(session->get(), 12000, 0).ok());
  }
  ASSERT_EQ(node_.Stop().value_or(-1), 0);
  SetSize(kMiB);
  const std::string said = ExpectRefused(
      node_, {"extent_file_bytes is 1048576", ExtentFile(), "leave it out", "16777216"});
  EXPECT_EQ(Size(), 16 * kMiB);
  // What it says is true.
  const std::size_t at = said.find("choose ");
  ASSERT_NE(at, std::string::npos) << said;
  SetSize(std::stoll(said.substr(at + 7)));
  ASSERT_TRUE(node_.Start().ok());
  auto node = compute::GrpcKvNode::Connect(node_.socket_path(), {});
  ASSERT_TRUE(node.ok()) << node.status();
  const auto session = (*node)->Open(session_);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE(Talk::Holds(session->get(), 12000));
  EXPECT_EQ(Size(), std::stoll(said.substr(at + 7)));
}

TEST_F(KvNodeResizeTest, MoreThanTheDiskHasIsRefusedAndTheStoreStays) {
  SetSize(4 * kMiB);
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  SetSize(std::int64_t{1} << 46);
  ExpectRefused(node_, {ExtentFile(), "bytes are needed", "are free", "extent_file_bytes"});
  EXPECT_EQ(Size(), 4 * kMiB);
  SetSize(0);
  ASSERT_NO_FATAL_FAILURE(ExpectSize(4 * kMiB));
}

TEST_F(KvNodeResizeTest, GrowingThatWasKilledGoesOnOrIsTakenBack) {
  SetSize(4 * kMiB);
  ASSERT_NO_FATAL_FAILURE(MakeConversation());
  for (const bool goes_on : {false, true}) {
    SetSize(64 * kMiB);
    node_.SetConfig("prefill_extent_file", "true");
    {
      Process process(node_.Command(), {});
      ASSERT_TRUE(process.WaitForLine("prefill file=").ok()) << process.output();
      process.Signal(SIGKILL);
      ASSERT_TRUE(process.Wait().ok());
      if (process.output().find("resized file=") != std::string::npos) {
        GTEST_SKIP() << "the file had grown before the node could be killed";
      }
    }
    EXPECT_EQ(Size(), 64 * kMiB);
    if (!goes_on) SetSize(0);
    ASSERT_NO_FATAL_FAILURE(ExpectSize(goes_on ? 64 * kMiB : 4 * kMiB));
  }
}

TEST_F(KvNodeResizeTest, ASignalEndsTheWritingOfANewSize) {
  node_.SetConfig("prefill_extent_file", "true");
  for (const std::int64_t size : {kMiB << 10, 2 * kMiB << 10}) {
    SetSize(size);
    Process process(node_.Command(), {});
    ASSERT_TRUE(process.WaitForLine("prefill file=").ok()) << process.output();
    process.Signal(SIGTERM);
    EXPECT_EQ(process.Wait().value_or(-1), 0) << process.output();
    if (process.output().find(": ready ") != std::string::npos) {
      GTEST_SKIP() << "the file had its new size before the signal could come";
    }
    EXPECT_NE(process.output().find("stopped while starting"), std::string::npos);
    if (fs::exists(ExtentFile())) continue;
    SetSize(4 * kMiB);
    ASSERT_NO_FATAL_FAILURE(MakeConversation());
  }
  SetSize(4 * kMiB);
  ASSERT_NO_FATAL_FAILURE(ExpectSize(4 * kMiB));
}

TEST_F(KvNodeResizeTest, AFileThatGrewIsMeasuredAgain) {
  SetSize(4 * kMiB);
  node_.SetConfig("prefill_extent_file", "true");
  const auto start = [&] {
    ASSERT_TRUE(node_.Start().ok());
    ASSERT_EQ(node_.Stop().value_or(-1), 0);
  };
  const auto measured = [&] {
    return node_.process().output().find("device calibrated") != std::string::npos;
  };
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(measured());
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_FALSE(measured());
  SetSize(8 * kMiB);
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_TRUE(measured());
  // Of space that was only reserved nothing is known, and the profile stays.
  SetSize(12 * kMiB);
  node_.SetConfig("prefill_extent_file", "false");
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_FALSE(measured());
  EXPECT_EQ(node_.process().output().find("not calibrated"), std::string::npos);
}

}  // namespace
}  // namespace cairn::test
