// SimNode is a KV node's process: an engine on a store, without a thread. What reaches it comes
// over a SimWire; a process that ends takes its answers with it.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/handshake.h"
#include "kv-node/engine/engine_core.h"
#include "tests/sim/sim_meta_store.h"
#include "tests/sim/sim_wire.h"
#include "tests/tools/faulty_device.h"

namespace cairn::sim {

class SimStream;

// Of a store that is full now and then, and of one that is not.
inline constexpr std::int64_t kSmallStorePages = 160;
inline constexpr std::int64_t kLargeStorePages = 512;

// What lies on a disk: it outlives processes.
struct SimStore {
  SimStore(std::uint64_t seed, char letter, std::int64_t page_count);
  kv::StoreId id{};
  std::string name;  // as GetCapabilities tells it
  std::int64_t page_count = 0;
  kv::FaultyDisk disk;
  SimRows rows;
  // Bits of it flip, or have: what was stored may be lost, and is then reported so.
  bool is_damaged = false;

  // The last checkpoint of the session of this uid, as its row says; none: there is no such row.
  std::optional<OpSeq> StoredOpSeq(const std::string& uid) const;
};

class SimNode {
 public:
  using Random = std::function<std::int64_t(std::int64_t below)>;

  SimNode(SimWire& wire, Random random) : wire_(wire), random_(std::move(random)) {}
  ~SimNode();
  SimNode(const SimNode&) = delete;
  SimNode& operator=(const SimNode&) = delete;

  bool is_up() const { return core_ != nullptr; }
  // REQUIRES: up, for all below but Start.
  SimStore& store() { return *store_; }
  SimMetaStore& meta() { return *meta_; }
  kv::EngineCore& core() { return *core_; }

  absl::Status Start(SimStore& store, const kv::EngineOptions& options, kv::EngineTime now);
  // Tells its clients that it is about to stop.
  void TellStopping();
  // kPowerCut: the disk forgets what was not flushed, too. kStop: what was begun is done first.
  // Of all calls and streams to one process.
  std::int64_t incarnation() const { return incarnation_; }
  void RunEngine(kv::EngineTime now);
  // When the engine ran last.
  kv::EngineTime last_run() const { return last_run_; }
  // As the handshake's socket gives it.
  absl::StatusOr<rpc::HandshakeMessage> Handshake(std::int64_t incarnation) const;
  // Whether all of its shared memory is within the limit.
  bool IsWithinBudget() const;
  enum class Ending { kKill, kPowerCut, kStop };
  void End(Ending ending, kv::EngineTime now);
  // Whether requests to a disk may have failed; what comes of it may be heard late.
  bool has_io_faults() const { return has_io_faults_; }
  void SetHasIoFaults(bool has) { has_io_faults_ = has; }
  // Sends a request; its answer comes later, or an error when the node or the connection goes away.
  template <typename T>
  void Call(std::function<void(kv::Engine&, kv::Callback<T>)> request, kv::Callback<T> answer);

  // Of all that have ended: pages that were packed.
  std::int64_t packed_page_count() const { return packed_page_count_; }

  // For streams.
  void Add(const std::shared_ptr<SimStream>& stream) { streams_.push_back(stream); }
  void Remove(const std::shared_ptr<SimStream>& stream) { std::erase(streams_, stream); }

 private:
  // Of a call: the answer goes out, or is lost on its way.
  template <typename T>
  void Answer(std::int64_t call, std::int64_t lane, const kv::Callback<T>& answer,
              absl::StatusOr<T> result);

  SimWire& wire_;
  const Random random_;
  SimStore* store_ = nullptr;
  SimMetaStore* meta_ = nullptr;  // the engine's
  std::unique_ptr<kv::EngineCore> core_;
  std::int64_t incarnation_ = 0;
  std::int64_t arena_bytes_max_ = 0;
  bool has_io_faults_ = false;
  std::int64_t packed_page_count_ = 0;
  kv::EngineTime last_time_{};
  kv::EngineTime last_run_{};
  std::map<std::int64_t, std::function<void()>> calls_;  // how each that waits here fails
  std::int64_t last_call_ = 0;
  std::vector<std::shared_ptr<SimStream>> streams_;  // from the oldest to the newest
};

// One answer in so many is lost.
inline constexpr std::int64_t kLoseAnswerOneIn = 24;

template <typename T>
void SimNode::Answer(std::int64_t call, std::int64_t lane, const kv::Callback<T>& answer,
                     absl::StatusOr<T> result) {
  calls_.erase(call);
  if (random_(kLoseAnswerOneIn) == 0) result = Unavailable("the connection broke");
  wire_.Send(lane, [this, lane, answer, result = std::move(result)] {
    wire_.Close(lane);
    answer(result);
  });
}

template <typename T>
void SimNode::Call(std::function<void(kv::Engine&, kv::Callback<T>)> request,
                   kv::Callback<T> answer) {
  const std::int64_t up = wire_.NewLane();
  const std::int64_t down = wire_.NewLane();
  const std::int64_t call = ++last_call_;
  wire_.Send(up, [this, up, down, call, sent_to = incarnation_, request = std::move(request),
                  answer = std::move(answer)] {
    wire_.Close(up);
    const auto fail = [this, call, down, answer] {
      Answer<T>(call, down, answer, Unavailable("the node went away"));
    };
    if (!is_up() || sent_to != incarnation_) return fail();
    calls_[call] = fail;
    request(*core_, [this, call, down, answer, life = incarnation_](absl::StatusOr<T> result) {
      if (life == incarnation_) Answer<T>(call, down, answer, std::move(result));
    });
  });
}

}  // namespace cairn::sim
