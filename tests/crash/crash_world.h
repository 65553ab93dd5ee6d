// A compute node's work on a KV node that may die at any moment: conversations that decode, split,
// evict, checkpoint, seal, fork and are deleted. Beside it what each of them must show after the
// node is back: its last acknowledged checkpoint, or one that was under way when the node died.
//
// Threading:  one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compute-node/kv_client/kv_client.h"
#include "tests/tools/rng.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/oracle.h"

namespace cairn::kv {

class CrashWorld {
 public:
  explicit CrashWorld(std::uint64_t seed)
      : rng_(seed), operations_(layout_, [this](std::int64_t below) { return Random(below); }) {}

  ~CrashWorld() = default;
  CrashWorld(const CrashWorld&) = delete;
  CrashWorld& operator=(const CrashWorld&) = delete;

  // The node is back: everything is opened and compared. Not OK: something is lost or wrong.
  absl::Status Connect(std::unique_ptr<compute::KvNode> node);
  // One random operation. Not OK: the node is gone, or something is wrong with it.
  absl::Status Step();
  // Deletes all sessions: nothing may be left on flash.
  absl::Status End();
  // Forgets what only lived in the connection.
  void Disconnect();

  std::int64_t Random(std::int64_t below) {
    return static_cast<std::int64_t>(rng_.Below(static_cast<std::uint64_t>(below)));
  }
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  struct Chat {
    SessionId id;
    std::unique_ptr<compute::KvSession> session;
    Oracle now;
    // States that the store may show: the number is in the policy's state. The first is the last
    // one that was acknowledged.
    std::map<std::int64_t, Oracle> saved;
    std::int64_t acked = 0;
    std::set<std::int64_t> recorded;  // carried positions that have a record in the open segment
    bool deleting = false;            // asked for, and not answered
  };
  struct Sealed {
    SegmentId segment;
    std::int64_t start = 0;
    std::int64_t number = 0;
    Oracle oracle;
  };

  absl::Status DropUnknownSessions();
  absl::Status Open(Chat& chat);
  absl::Status ReadCarried(Chat& chat);
  absl::Status Create();
  absl::Status Fork();
  absl::Status Decode(Chat& chat);
  absl::Status Split(Chat& chat);
  absl::Status MergeOrRepair(Chat& chat);
  absl::Status Evict(Chat& chat);
  absl::Status Relate(Chat& chat);
  absl::Status TakeCheckpoint(Chat& chat);
  absl::Status FinishCheckpoint(Chat& chat, std::int64_t number,
                                const std::set<std::int64_t>& carried);
  absl::Status SealClosed(Chat& chat);
  absl::Status Rest();
  absl::Status Delete(std::size_t index);
  absl::Status CheckSome(Chat& chat);
  absl::Status CheckIndex(Chat& chat, std::int32_t layer);
  absl::Status CheckAll(Chat& chat);
  absl::Status CheckClusters(Chat& chat, std::int32_t layer, std::vector<ClusterRef> clusters);
  absl::Status CheckCluster(const Chat& chat, std::int32_t layer,
                            const FetchedCluster& fetched) const;

  const EntryLayout layout_ = SmallLayout();
  test::Rng rng_;
  RandomOperations operations_;
  std::unique_ptr<compute::KvNode> node_;
  std::vector<Chat> chats_;
  std::vector<Sealed> sealed_;
  bool creating_ = false;  // a session that nobody knows may be there
  std::int64_t next_number_ = 1;
  std::map<std::string, int> counts_;
};

}  // namespace cairn::kv
