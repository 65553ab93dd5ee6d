// Measures fetches of a running KV node over gRPC: latency from the cache, throughput from flash,
// processor time of both sides. Prints one JSON object a line; kv_fetch.py starts the daemon, puts
// fio beside the figures and prints the table.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <fstream>
#include <future>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/base/check.h"
#include "common/base/thread.h"
#include "compute-node/kv_client/grpc_kv_node.h"
#include "tests/tools/rng.h"

namespace cairn::compute {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kEntryBytes = 512;  // f16, d=128
constexpr std::int64_t kAppendEntries = 2048;

struct Settings {
  std::string socket_path;
  std::int64_t node_pid = 0;
  std::int64_t store_bytes = std::int64_t{256} << 20;
  double seconds = 2;
  bool use_arena = true;
  int realtime_priority = 0;
  std::string only;  // part of the names of the cases to run
};

// User and system time of this process.
double OwnCpuSeconds() {
  rusage usage{};
  CAIRN_CHECK_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Fields 14 and 15 of /proc/PID/stat; the name in field 2 ends with the last parenthesis.
double NodeCpuSeconds(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  line = line.substr(line.rfind(')') + 2);
  std::int64_t field = 3;
  double ticks = 0;
  for (std::size_t at = 0; at != std::string::npos && field < 16; ++field) {
    const std::size_t end = line.find(' ', at);
    if (field >= 14) ticks += std::stod(line.substr(at, end - at));
    at = end == std::string::npos ? end : end + 1;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// A session with clusters 1 .. cluster_count of layer 0 and head 0, all on flash.
class Store {
 public:
  Store(KvNode& node, std::int64_t cluster_entries, std::int64_t bytes)
      : cluster_entries_(cluster_entries), cluster_count_(bytes / kEntryBytes / cluster_entries) {
    CreateSession create;
    create.key.model_digest = std::string(32, 'm');
    create.key.rope_parameters = "base=10000";
    create.layout = {1, 1, 128, KvFormat::kF16};
    const SessionId id = node.Create(create)->id;
    session_ = *node.Open({id});
    for (std::int64_t first = 0; first < cluster_count_;) first = AppendFrom(first);
  }

  KvSession& session() { return *session_; }
  std::int64_t cluster_count() const { return cluster_count_; }
  std::int64_t cluster_bytes() const { return cluster_entries_ * kEntryBytes; }

 private:
  std::int64_t AppendFrom(std::int64_t first) {
    Append append;
    Checkpoint checkpoint;
    checkpoint.token_ids_start = first * cluster_entries_;
    const std::int64_t end = std::min(
        cluster_count_, first + std::max<std::int64_t>(1, kAppendEntries / cluster_entries_));
    for (std::int64_t i = first; i < end; ++i) {
      append.clusters.push_back({{0, ClusterId(i + 1)},
                                 Positions::Range(i * cluster_entries_, cluster_entries_),
                                 std::string(static_cast<std::size_t>(cluster_bytes()), 'k')});
    }
    checkpoint.token_count = end * cluster_entries_;
    checkpoint.token_ids.resize(static_cast<std::size_t>((end - first) * cluster_entries_));
    checkpoint.next_cluster_ids = {end + 1, 1};
    CAIRN_CHECK(session_->Send(std::move(append)).ok());
    CAIRN_CHECK(session_->Send(std::move(checkpoint)).ok());
    const auto done = session_->WaitForCheckpoint();
    if (!done.ok()) std::cerr << done.status() << '\n';
    CAIRN_CHECK(done.ok());
    return end;
  }

  const std::int64_t cluster_entries_;
  const std::int64_t cluster_count_;
  std::unique_ptr<KvSession> session_;
};

struct Case {
  std::string name;
  std::int64_t clusters = 0;    // a fetch
  std::int64_t run_length = 1;  // so many of them side by side
  bool cached = false;          // the same clusters every time
  int in_flight = 1;
};

class Measurement {
 public:
  Measurement(const Settings& settings, KvNode& node, Store& store, Case what)
      : settings_(settings), node_(node), store_(store), case_(std::move(what)), random_(7) {}

  void Run() {
    if (case_.cached) Finish(Start());  // brings it into the cache
    before_ = *node_.Stats();
    const double own_cpu = OwnCpuSeconds();
    const double node_cpu = NodeCpuSeconds(settings_.node_pid);
    const Clock::time_point begin = Clock::now();
    const auto end = begin + std::chrono::duration<double>(settings_.seconds);
    std::deque<Request> requests;
    while (Clock::now() < end) {
      while (std::ssize(requests) < case_.in_flight) requests.push_back(Start());
      latencies_us_.push_back(Finish(std::move(requests.front())));
      requests.pop_front();
    }
    for (Request& request : requests) latencies_us_.push_back(Finish(std::move(request)));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    store_.session().ReturnLeases();
    Print(seconds, OwnCpuSeconds() - own_cpu, NodeCpuSeconds(settings_.node_pid) - node_cpu);
  }

 private:
  struct Request {
    Clock::time_point begin;
    std::future<absl::StatusOr<ReadReply>> answer;
  };

  Request Start() {
    Fetch fetch;
    const std::int64_t groups = store_.cluster_count() / case_.run_length;
    for (std::int64_t i = 0; i < case_.clusters; i += case_.run_length) {
      const std::int64_t group =
          case_.cached
              ? i
              : static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(groups)));
      for (std::int64_t j = 0; j < case_.run_length; ++j) {
        fetch.clusters.push_back({0, ClusterId(group * case_.run_length + j + 1)});
      }
    }
    Request request{Clock::now(), {}};
    request.answer = store_.session().StartRead(std::move(fetch));
    return request;
  }

  double Finish(Request request) {
    const auto reply = Wait<FetchReply>(std::move(request.answer));
    if (!reply.ok()) std::cerr << reply.status() << '\n';
    CAIRN_CHECK(reply.ok());
    const double us =
        std::chrono::duration<double, std::micro>(Clock::now() - request.begin).count();
    for (const FetchedCluster& cluster : reply->clusters) {
      CAIRN_CHECK(cluster.outcome == FetchOutcome::kFound);
      for (const Span& span : cluster.spans) bytes_ += std::ssize(span.bytes);
    }
    return us;
  }

  void Print(double seconds, double own_cpu, double node_cpu) {
    std::sort(latencies_us_.begin(), latencies_us_.end());
    const auto percentile = [&](double share) {
      return latencies_us_[static_cast<std::size_t>(
          share * static_cast<double>(std::ssize(latencies_us_) - 1))];
    };
    const double gb = static_cast<double>(bytes_) / 1e9;
    const KvStats after = *node_.Stats();
    const std::int64_t hits = after.cache_hit_count - before_.cache_hit_count;
    const std::int64_t misses = after.cache_miss_count - before_.cache_miss_count;
    const double hit_share =
        static_cast<double>(hits) / static_cast<double>(std::max<std::int64_t>(1, hits + misses));
    const auto fetches = static_cast<double>(std::ssize(latencies_us_));
    std::cout << fmt::format(
                     "{{\"case\": \"{}\", \"arena\": {}, \"fetches\": {}, \"gb_per_s\": {:.4f}, "
                     "\"clusters_per_s\": {:.0f}, \"p50_us\": {:.1f}, \"p99_us\": {:.1f}, "
                     "\"client_cpu_s_per_gb\": {:.4f}, \"node_cpu_s_per_gb\": {:.4f}, "
                     "\"hit_share\": {:.3f}}}",
                     case_.name, settings_.use_arena, fetches, gb / seconds,
                     fetches * static_cast<double>(case_.clusters) / seconds, percentile(0.5),
                     percentile(0.99), own_cpu / gb, node_cpu / gb, hit_share)
              << std::endl;
  }

  const Settings& settings_;
  KvNode& node_;
  Store& store_;
  const Case case_;
  cairn::test::Rng random_;
  std::vector<double> latencies_us_;
  std::int64_t bytes_ = 0;
  KvStats before_;
};

void RunAll(const Settings& settings) {
  KvClientOptions options;
  options.use_arena = settings.use_arena;
  options.realtime_priority = settings.realtime_priority;
  const ServingPriority realtime(settings.realtime_priority);
  CAIRN_CHECK(realtime.status().ok());
  auto node = GrpcKvNode::Connect(settings.socket_path, options);
  if (!node.ok()) std::cerr << node.status() << '\n';
  CAIRN_CHECK(node.ok());
  Store small(**node, 8, settings.store_bytes);   // one page a cluster
  Store large(**node, 32, settings.store_bytes);  // 16 KiB
  const Case on_small[] = {{"cached 1 cluster", 1, 1, true, 1},
                           {"cached 16 clusters", 16, 1, true, 1},
                           {"cached 64 clusters", 64, 1, true, 1},
                           {"cached 64 clusters, two in flight", 64, 1, true, 2},
                           {"flash 16 x 4 KiB", 16, 1, false, 1},
                           {"flash 400 x 4 KiB, two in flight", 400, 1, false, 2}};
  const Case on_large[] = {{"cached 64 x 16 KiB", 64, 1, true, 1},
                           {"flash 64 x 16 KiB, two in flight", 64, 1, false, 2},
                           {"flash 4 x 256 KiB merged, two in flight", 64, 16, false, 2}};
  const auto run = [&](Store& store, const Case& what) {
    if (what.name.find(settings.only) != std::string::npos)
      Measurement(settings, **node, store, what).Run();
  };
  for (const Case& what : on_small) run(small, what);
  for (const Case& what : on_large) run(large, what);
}

}  // namespace
}  // namespace cairn::compute

int main(int argc, char** argv) {
  try {
    cairn::compute::Settings settings;
    CLI::App app("Measure fetches of a running KV node; prints one JSON object a line.");
    app.add_option("--socket", settings.socket_path, "Socket of the KV node")->required();
    app.add_option("--node-pid", settings.node_pid, "Its process")->required();
    std::int64_t store_mib = settings.store_bytes >> 20;
    app.add_option("--store-mib", store_mib, "MiB of each of the two sessions");
    app.add_option("--seconds", settings.seconds, "Time of each measurement");
    app.add_option("--only", settings.only, "Only cases with this in their name");
    app.add_option("--realtime-priority", settings.realtime_priority,
                   "Of this program's threads that wait for answers");
    app.add_flag("!--inline", settings.use_arena, "Entries through the socket, no shared memory");
    CLI11_PARSE(app, argc, argv);
    settings.store_bytes = store_mib << 20;
    cairn::compute::RunAll(settings);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
