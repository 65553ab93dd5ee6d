#include "tests/integration/kv_node_process.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/base/check.h"

namespace cairn::test {

KvNodeProcess::KvNodeProcess(const std::string& io_engine) {
  SetConfig("data_dir", '"' + data_dir() + '"');
  SetConfig("socket_path", '"' + socket_path() + '"');
  SetConfig("extent_file_bytes", "33554432");
  SetConfig("prefill_extent_file", "false");
  SetConfig("io_engine", '"' + io_engine + '"');
  if (io_engine == "auto") SetConfigOfEnvironment();
}

void KvNodeProcess::SetConfigOfEnvironment() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in this program changes the environment
  const char* const lines = std::getenv("CAIRN_TEST_KV_CONFIG");
  if (lines == nullptr) return;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line, ',');) {
    const std::size_t colon = line.find(':');
    CAIRN_CHECK(colon != std::string::npos);
    const std::size_t begin = line.find_first_not_of(' ');
    SetConfig(line.substr(begin, colon - begin), line.substr(colon + 1));
  }
}

void KvNodeProcess::SetConfig(const std::string& key, const std::string& value) {
  std::erase_if(config_, [&key](const auto& entry) { return entry.first == key; });
  config_.emplace_back(key, value);
  WriteConfig();
}

void KvNodeProcess::WriteConfig() const {
  std::ofstream file(directory_.File("kv.conf"));
  for (const auto& [key, value] : config_) file << key << ": " << value << "\n";
}

std::vector<std::string> KvNodeProcess::Command() const {
  return {BinaryPath("cairn-kv-node"), "--config", directory_.File("kv.conf")};
}

absl::StatusOr<std::string> KvNodeProcess::Start(const std::vector<std::string>& environment) {
  process_ = std::make_unique<Process>(Command(), environment);
  return process_->WaitForLine(": ready ");
}

absl::StatusOr<int> KvNodeProcess::Stop() {
  process_->Signal(SIGTERM);
  return process_->Wait();
}

CreateSession Talk::Request() {
  CreateSession request;
  request.layout = kLayout;
  request.key.model_digest = std::string(kDigestBytes, 'm');
  request.key.rope_parameters = "base=10000";
  request.label = "talk";
  return request;
}

std::string Talk::EntriesOf(std::int32_t layer, std::int32_t head, std::int64_t first,
                            std::int64_t count) {
  std::string out;
  for (std::int64_t position = first; position < first + count; ++position) {
    std::string entry = fmt::format("layer {} head {} position {} ", layer, head, position);
    entry.resize(static_cast<std::size_t>(kLayout.EntryBytes(head)),
                 static_cast<char>('a' + position % 26));
    out += entry;
  }
  return out;
}

absl::Status Talk::Append(compute::KvSession* session, std::int64_t first, std::int64_t count) {
  while (count > 0) {
    const std::int64_t cluster = first / kClusterTokens;
    const std::int64_t step = std::min(count, (cluster + 1) * kClusterTokens - first);
    for (std::int32_t layer = 0; layer < kLayout.layer_count; ++layer) {
      cairn::Append append{layer, {}};
      for (std::int32_t head = 0; head < kLayout.head_count; ++head) {
        append.clusters.push_back({{head, ClusterId(cluster + 1)},
                                   Positions::Range(first, step),
                                   EntriesOf(layer, head, first, step)});
      }
      CAIRN_RETURN_IF_ERROR(session->Send(std::move(append)));
    }
    first += step;
    count -= step;
  }
  return absl::OkStatus();
}

Checkpoint Talk::CheckpointAt(std::int64_t token_count, std::int64_t token_ids_start) {
  Checkpoint checkpoint;
  checkpoint.token_count = token_count;
  checkpoint.token_ids_start = token_ids_start;
  for (std::int64_t i = token_ids_start; i < token_count; ++i) {
    checkpoint.token_ids.push_back(static_cast<std::int32_t>(1000 + i));
  }
  const std::int64_t next_id = (token_count + kClusterTokens - 1) / kClusterTokens + 1;
  for (std::int32_t layer = 0; layer < kLayout.layer_count; ++layer) {
    checkpoint.next_cluster_ids.insert(checkpoint.next_cluster_ids.end(), kLayout.head_count,
                                       next_id);
    checkpoint.next_cluster_ids.push_back(1);
  }
  return checkpoint;
}

absl::StatusOr<Checkpointed> Talk::TakeCheckpoint(compute::KvSession* session,
                                                  std::int64_t token_count,
                                                  std::int64_t token_ids_start) {
  CAIRN_RETURN_IF_ERROR(session->Send(CheckpointAt(token_count, token_ids_start)));
  return session->WaitForCheckpoint();
}

testing::AssertionResult Talk::LayerHolds(compute::KvSession* session, std::int32_t layer,
                                          std::int64_t count) {
  Fetch fetch{layer, {}, true};
  // One cluster more than there should be.
  for (std::int64_t id = 1; id <= count / kClusterTokens + 2; ++id) {
    for (std::int32_t head = 0; head < kLayout.head_count; ++head) {
      fetch.clusters.push_back({head, ClusterId(id)});
    }
  }
  const auto reply = compute::Wait<FetchReply>(session->StartRead(fetch));
  if (!reply.ok()) return testing::AssertionFailure() << reply.status();
  for (const FetchedCluster& cluster : reply->clusters) {
    const std::int64_t first = (cluster.cluster.cluster_id.value() - 1) * kClusterTokens;
    const std::int64_t expected =
        std::min(kClusterTokens, std::max<std::int64_t>(count - first, 0));
    std::string bytes;
    const std::int64_t entry_bytes = kLayout.EntryBytes(cluster.cluster.head);
    for (const Span& span : cluster.spans) {
      for (std::int64_t i = 0; i < span.entry_count; ++i) {
        bytes.append(reinterpret_cast<const char*>(span.Entry(i, entry_bytes)),
                     static_cast<std::size_t>(entry_bytes));
      }
    }
    if (bytes != EntriesOf(layer, cluster.cluster.head, first, expected)) {
      return testing::AssertionFailure()
             << "cluster " << cluster.cluster.cluster_id.value() << " of layer " << layer
             << " head " << cluster.cluster.head << " has " << bytes.size() << " bytes, outcome "
             << static_cast<int>(cluster.outcome) << ", not " << expected << " entries";
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult Talk::Holds(compute::KvSession* session, std::int64_t count) {
  for (std::int32_t layer = 0; layer < kLayout.layer_count; ++layer) {
    testing::AssertionResult result = LayerHolds(session, layer, count);
    if (!result) return result;
  }
  return testing::AssertionSuccess();
}

}  // namespace cairn::test
