// A real cairn-kv-node in a directory of its own, and a conversation whose bytes say what they are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compute-node/kv_client/grpc_kv_node.h"
#include "tests/tools/process.h"
#include "tests/tools/temp_dir.h"

namespace cairn::test {

class KvNodeProcess {
 public:
  // `io_engine` as in the configuration file. With "auto", CAIRN_TEST_KV_CONFIG may
  // have lines of the configuration, with commas between them.
  explicit KvNodeProcess(const std::string& io_engine = "auto");

  const std::string& directory() const { return directory_.path(); }
  std::string data_dir() const { return directory_.File("store"); }
  std::string socket_path() const { return directory_.File("kv.sock"); }
  // Writes key: value over what was set before.
  void SetConfig(const std::string& key, const std::string& value);
  std::int64_t config_line_count() const { return std::ssize(config_); }
  std::vector<std::string> Command() const;

  // Waits for its ready line, which it returns.
  absl::StatusOr<std::string> Start(const std::vector<std::string>& environment = {});
  // SIGTERM; the exit code.
  absl::StatusOr<int> Stop();
  void Kill() { process_->Kill(); }
  Process& process() { return *process_; }

 private:
  void WriteConfig() const;
  void SetConfigOfEnvironment();

  TempDir directory_;
  std::vector<std::pair<std::string, std::string>> config_;
  std::unique_ptr<Process> process_;
};

// Tokens of a conversation in clusters of kClusterTokens consecutive ones.
class Talk {
 public:
  static constexpr std::int64_t kClusterTokens = 16;
  static constexpr EntryLayout kLayout{2, 2, 16, KvFormat::kF16};

  static CreateSession Request();
  // Appends tokens [first, first + count) in every layer and head.
  static absl::Status Append(compute::KvSession* session, std::int64_t first, std::int64_t count);
  static Checkpoint CheckpointAt(std::int64_t token_count, std::int64_t token_ids_start);
  static absl::StatusOr<Checkpointed> TakeCheckpoint(compute::KvSession* session,
                                                     std::int64_t token_count,
                                                     std::int64_t token_ids_start);
  // Whether exactly tokens [0, count) are there, with their bytes.
  static testing::AssertionResult Holds(compute::KvSession* session, std::int64_t count);

 private:
  static std::string EntriesOf(std::int32_t layer, std::int32_t head, std::int64_t first,
                               std::int64_t count);
  static testing::AssertionResult LayerHolds(compute::KvSession* session, std::int32_t layer,
                                             std::int64_t count);
};

}  // namespace cairn::test
