// Random histories against the real engine, judged by an oracle: sessions that decode, split,
// evict, checkpoint, seal and fork; connections that break; KV nodes that are killed; power cuts
// that tear what was not flushed; extent files that shrink and grow between two nodes. After each
// of them every session must show exactly what its last durable checkpoint, and the operations sent
// again behind it, say.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/faulty_device.h"
#include "tests/tools/unsynced_fs.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/oracle.h"

namespace cairn::kv {

inline constexpr std::int64_t kDiskBytes = std::int64_t{16} << 20;

// A compute node's side of one session.
struct Chat {
  SessionId id;
  std::unique_ptr<TestSession> session;
  Epoch epoch;
  Oracle now;
  std::map<OpSeq, Oracle> at_checkpoint;  // by the checkpoint's number; 0: as created
  std::vector<std::pair<OpSeq, ChangingOperation>> replay;
  OpSeq acked;
  std::set<std::int64_t> recorded;  // carried positions that have a record in the open segment
};

class HistoryWorld {
 public:
  HistoryWorld(std::uint64_t seed, const std::string& directory);
  ~HistoryWorld();
  HistoryWorld(const HistoryWorld&) = delete;
  HistoryWorld& operator=(const HistoryWorld&) = delete;

  // One random step. Failures are GoogleTest failures.
  void Step();
  // Everything is opened once more and checked, then deleted: no flash may be left in use.
  void End();
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  std::int64_t Random(std::int64_t below);
  absl::StatusOr<std::unique_ptr<MetaStore>> OpenMeta();
  void StartEngine();
  void Resize();
  bool TryShrink(std::int64_t slack_pages);
  void WipeFrom(std::int64_t page);
  void Restart(bool power_cut);
  void Rest();
  void ComeBack(bool power_cut);
  void Create();
  void Fork();
  void Decode(Chat& chat);
  void Split(Chat& chat);
  void MergeOrRepair(Chat& chat);
  void Evict(Chat& chat);
  void Relate(Chat& chat);
  void CheckIndex(Chat& chat, std::int32_t layer);
  enum class Power { kStays, kFails };
  // With Power::kFails the next sync of the metadata's log never happens.
  void TakeCheckpoint(Chat& chat, Power power = Power::kStays);
  void CutPower();
  void CountWork();  // of the engine that runs
  void Fetch(Chat& chat);
  void OpenFresh(Chat& chat);
  bool ResumeOrOpen(Chat& chat);
  void Delete(std::size_t index);
  void Send(Chat& chat, ChangingOperation operation);
  void CheckAll(Chat& chat);
  void CheckCluster(Chat& chat, std::int32_t layer, std::int32_t head, std::int64_t cluster);

  const EntryLayout layout_;  // SmallLayout in the format that the seed says
  std::mt19937_64 random_;
  RandomOperations operations_;
  const std::string directory_;
  FaultyDisk disk_;
  std::int64_t page_count_;            // of the extent file now
  std::shared_ptr<UnsyncedFs> files_;  // below the metadata of the engine that runs
  std::unique_ptr<Engine> engine_;
  std::vector<Chat> chats_;
  struct Sealed {
    SegmentId segment;
    std::int64_t start = 0;
    Oracle oracle;
  };
  std::vector<Sealed> sealed_;
  std::map<std::string, int> counts_;
};

}  // namespace cairn::kv
