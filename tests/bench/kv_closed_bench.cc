// Fills a running KV node with closed sessions, or opens one and keeps it open until its input
// ends; kv_closed.py measures the node's memory and how long it takes to start.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/base/check.h"
#include "compute-node/kv_client/grpc_kv_node.h"

namespace cairn::compute {
namespace {

// Llama-3.2-1B in f16, clusters of 8 entries: 512 MiB and 262,144 clusters at 16K tokens.
constexpr EntryLayout kLayout{16, 8, 64, KvFormat::kF16};
constexpr std::int64_t kClusterEntries = 8;
constexpr std::size_t kIndexRowBytes = 64;  // a centroid of int8
constexpr std::int64_t kTokensEach = 512;   // of a checkpoint
constexpr std::int64_t kClustersEach = kTokensEach / kClusterEntries;

std::unique_ptr<KvNode> Connect(const std::string& socket_path) {
  auto node = GrpcKvNode::Connect(socket_path, {});
  if (!node.ok()) std::cerr << node.status() << '\n';
  CAIRN_CHECK(node.ok());
  return *std::move(node);
}

void AppendTokens(KvSession& session, std::int64_t first) {
  Checkpoint checkpoint;
  for (std::int32_t layer = 0; layer < kLayout.layer_count; ++layer) {
    Append append;
    append.layer = layer;
    PutIndexRows index;
    index.layer = layer;
    for (std::int32_t head = 0; head < kLayout.head_count; ++head) {
      for (std::int64_t i = 0; i < kClustersEach; ++i) {
        // Scattered, as entries of one cluster are: none beside another.
        std::vector<std::int64_t> positions;
        for (std::int64_t p = i; p < kTokensEach; p += kClustersEach)
          positions.push_back(first + p);
        const std::int64_t bytes = kClusterEntries * kLayout.EntryBytes(head);
        append.clusters.push_back({{head, ClusterId(first / kClusterEntries + i + 1)},
                                   Positions::FromUnsorted(std::move(positions)),
                                   std::string(static_cast<std::size_t>(bytes), 'k')});
        index.rows.push_back({append.clusters.back().cluster, std::string(kIndexRowBytes, 'c'),
                              false, kClusterEntries});
      }
      checkpoint.next_cluster_ids.push_back((first + kTokensEach) / kClusterEntries + 1);
    }
    checkpoint.next_cluster_ids.push_back(1);  // of all heads together
    CAIRN_CHECK(session.Send(std::move(append)).ok());
    CAIRN_CHECK(session.Send(std::move(index)).ok());
  }
  checkpoint.token_ids_start = first;
  checkpoint.token_ids.resize(static_cast<std::size_t>(kTokensEach));
  checkpoint.token_count = first + kTokensEach;
  CAIRN_CHECK(session.Send(std::move(checkpoint)).ok());
  const auto done = session.WaitForCheckpoint();
  if (!done.ok()) std::cerr << done.status() << '\n';
  CAIRN_CHECK(done.ok());
}

void Fill(KvNode& node, std::int64_t session_count, std::int64_t token_count) {
  for (std::int64_t i = 0; i < session_count; ++i) {
    CreateSession create;
    create.key.model_digest = std::string(kDigestBytes, 'm');
    create.key.rope_parameters = "base=500000";
    create.layout = kLayout;
    create.label = fmt::format("closed {}", i);
    const auto session = *node.Open(*node.Create(create));
    session->SetReplayMode(ReplayMode::kNothing);
    for (std::int64_t first = 0; first < token_count; first += kTokensEach) {
      AppendTokens(*session, first);
    }
    std::cout << fmt::format("filled {}", i + 1) << std::endl;
  }
}

void KeepOpen(KvNode& node) {
  const auto sessions = *node.List(ListDetail::kRows);
  CAIRN_CHECK(!sessions.empty());
  const auto session = *node.Open({sessions.front().session_id});
  std::cout << fmt::format("open tokens={}", session->attachment().token_count) << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
  }
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  try {
    std::string socket_path;
    std::int64_t session_count = 20;
    std::int64_t token_count = 16384;
    CLI::App app("Fill a running KV node with closed sessions, or keep one open.");
    app.add_option("--socket", socket_path, "Socket of the KV node")->required();
    app.require_subcommand(1);
    CLI::App* fill = app.add_subcommand("fill", "Sessions of the Llama-3.2-1B shape, then closed");
    fill->add_option("--sessions", session_count, "How many");
    fill->add_option("--tokens", token_count, "Tokens of each, a multiple of 512");
    app.add_subcommand("open", "Opens the newest; ends with its input");
    CLI11_PARSE(app, argc, argv);
    const auto node = cairn::compute::Connect(socket_path);
    if (fill->parsed()) {
      cairn::compute::Fill(*node, session_count, token_count);
    } else {
      cairn::compute::KeepOpen(*node);
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
