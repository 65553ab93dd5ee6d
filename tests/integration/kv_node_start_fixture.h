// Stores that a real cairn-kv-node starts with, and starts that it refuses: one line says what is
// wrong with which object and what to do; exit code 1.
#pragma once

#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/kv_node_process.h"
#include "tests/tools/file_bytes.h"

namespace cairn::test {

namespace fs = std::filesystem;

// Runs until it ends by itself.
struct Ended {
  int code = -1;
  std::string output;
};
inline Ended RunToEnd(const std::vector<std::string>& argv,
                      const std::vector<std::string>& environment = {}) {
  Process process(argv, environment);
  const auto code = process.Wait();
  EXPECT_TRUE(code.ok()) << code.status();
  return {code.value_or(-1), process.output()};
}

// The last line is what a user reads.
inline std::string LastLine(const std::string& output) {
  const std::size_t end = output.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t before = output.rfind('\n', end);
  return output.substr(before == std::string::npos ? 0 : before + 1, end + 1);
}

class KvNodeStartTest : public testing::Test {
 protected:
  // Expects a start to fail with this exit code and all of `texts` in the last line, which it
  // returns.
  static std::string ExpectRefused(const KvNodeProcess& node, const std::vector<std::string>& texts,
                                   int code = 1) {
    const Ended ended = RunToEnd(node.Command());
    EXPECT_EQ(ended.code, code) << ended.output;
    std::string line = LastLine(ended.output);
    EXPECT_EQ(line.find("cairn-kv-node cannot start: "), 0U) << ended.output;
    for (const std::string& text : texts) {
      EXPECT_NE(line.find(text), std::string::npos) << "no \"" << text << "\" in: " << line;
    }
    return line;
  }
  void MakeStore() {
    ASSERT_TRUE(node_.Start().ok());
    ASSERT_EQ(node_.Stop().value_or(-1), 0);
  }
  // A store that holds a conversation of kTokens tokens, stopped or killed.
  static constexpr std::int64_t kTokens = 100;
  void Converse() {
    auto node = compute::GrpcKvNode::Connect(node_.socket_path(), {});
    ASSERT_TRUE(node.ok()) << node.status();
    const auto created = (*node)->Create(Talk::Request());
    ASSERT_TRUE(created.ok()) << created.status();
    session_ = *created;
    const auto session = (*node)->Open(session_);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE(Talk::Append(session->get(), 0, kTokens).ok());
    ASSERT_TRUE(Talk::TakeCheckpoint(session->get(), kTokens, 0).ok());
  }
  void MakeConversation() {
    ASSERT_TRUE(node_.Start().ok());
    ASSERT_NO_FATAL_FAILURE(Converse());
    ASSERT_EQ(node_.Stop().value_or(-1), 0);
  }
  void ExpectConversation() {
    const auto started = node_.Start();
    ASSERT_TRUE(started.ok()) << started.status();
    auto node = compute::GrpcKvNode::Connect(node_.socket_path(), {});
    ASSERT_TRUE(node.ok()) << node.status();
    const auto session = (*node)->Open(session_);
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_EQ((*session)->attachment().token_count, kTokens);
    EXPECT_TRUE(Talk::Holds(session->get(), kTokens));
  }
  // Files of the store by path, with their bytes.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(node_.data_dir())) {
      files[entry.path().string()] = cairn::test::BytesOfFile(entry.path());
    }
    return files;
  }
  void ExpectRefusedAndUntouched(const std::vector<std::string>& texts) {
    const auto before = Files();
    ExpectRefused(node_, texts);
    EXPECT_TRUE(Files() == before) << "a refused start changed the store";
  }
  std::vector<fs::path> MetaFiles(const std::string& part) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(MetaDirectory())) {
      if (entry.path().filename().string().find(part) != std::string::npos) {
        found.push_back(entry.path());
      }
    }
    EXPECT_FALSE(found.empty()) << part;
    return found;
  }
  std::string MetaDirectory() const { return node_.data_dir() + "/meta"; }
  std::string ExtentFile() const { return node_.data_dir() + "/extents.cairn"; }

  KvNodeProcess node_;
  SessionRef session_;
};

}  // namespace cairn::test
