// Random histories on a disk that fails while they run: reads, writes and flushes that fail,
// transfers that end early, writes that are lost or go elsewhere, pages that rot, devices that go
// away. What must hold all the time:
// - a fetched cluster is what the oracle says, or it is reported lost; lost only if a read of that
//   very fetch failed, or if the disk has lost or damaged something before;
// - a failed write or flush ends the attachment, says so, and the session is at a checkpoint that
//   was acknowledged or under way;
// - what was lost can be brought again, and then everything is whole; what is deleted leaves no
//   page in use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/tools/faulty_device.h"
#include "tests/tools/unsynced_fs.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/oracle.h"

namespace cairn::kv {

// Of the status of carried entries that are gone.
inline constexpr std::string_view kCarriedLost = "fails its check, each of two times";
// Of what may be read another time.
inline constexpr std::string_view kUnreadableNow = "cannot be read now";

template <typename... Args>
absl::Status Wrong(const fmt::format_string<Args...>& format, Args&&... args) {
  return absl::InternalError("WRONG: " + fmt::format(format, std::forward<Args>(args)...));
}

// An error of the disk has no code of its own.
inline bool Tells(const absl::Status& status, std::string_view what) {
  return Message(status).find(what) != std::string::npos;
}

// Of what a commit that failed would have done; whether it was done is seen later.
inline constexpr std::string_view kNotCommitted = "commit to the metadata store";

inline bool IsWrong(const absl::Status& status) { return Tells(status, "WRONG"); }

class FaultWorld {
 public:
  // Faults that pass leave nothing behind: in the end nothing may be lost. Lasting ones damage what
  // is stored.
  enum class Faults { kPassing, kLasting };

  FaultWorld(std::uint64_t seed, const std::string& directory, Faults faults);
  ~FaultWorld();
  FaultWorld(const FaultWorld&) = delete;
  FaultWorld& operator=(const FaultWorld&) = delete;

  // One random step. Not OK: something is wrong.
  absl::Status Step();
  // No more faults: everything is opened, checked and repaired, then deleted.
  absl::Status End();
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  struct Chat {
    SessionId id;
    std::unique_ptr<TestSession> session;
    Oracle now;
    std::map<OpSeq, Oracle> at_checkpoint;  // that the store may show
    OpSeq acked;
    std::set<std::int64_t> recorded;  // carried positions that have a record in the open segment
  };
  struct Sealed {
    SegmentId segment;
    std::int64_t start = 0;
    Oracle oracle;
  };

  std::int64_t Random(std::int64_t below);
  absl::Status StartEngine();
  void Arm();
  void CountHits();
  // Whether what is stored may be damaged, or what was read since `before` come wrong twice.
  bool MayBeLost(const FaultyDiskHits& before);
  // Whether a read since `before` may have failed twice.
  bool MayBeUnreadable(const FaultyDiskHits& before);
  // Whether index rows may be gone: what comes wrong twice while a run is packed anew is left out.
  bool MayLackRows(const FaultyDiskHits& before);
  // What cannot be read now is read when the disk is right again.
  absl::StatusOr<ReadReply> Read(Chat& chat, const ReadOperation& operation);
  absl::StatusOr<KvStats> Stats();

  // Each of these: OK; what is wrong; or why the attachment ended.
  absl::Status Act(Chat& chat);
  absl::Status Decode(Chat& chat);
  absl::Status SendReplace(Chat& chat, Replace op);
  absl::Status Rearrange(Chat& chat);
  absl::Status TakeCheckpoint(Chat& chat);
  absl::Status FinishCheckpoint(Chat& chat, OpSeq op_seq);
  absl::Status CheckSome(Chat& chat);
  absl::Status CheckAll(Chat& chat);
  absl::Status CheckIndex(Chat& chat, std::int32_t layer);
  absl::Status CheckRows(Chat& chat, std::int32_t layer, const std::vector<IndexRow>& rows,
                         const FaultyDiskHits& before);
  // Clusters that are lost are added to `lost`.
  absl::Status CheckCluster(Chat& chat, const Oracle::LayerHead& layer_head, std::int64_t cluster,
                            std::set<std::int64_t>& lost);
  absl::Status CheckClusterList(Chat& chat);
  absl::Status OpenOnce(Chat& chat);
  absl::Status ReadCarried(Chat& chat);
  absl::Status RepairAll(Chat& chat);

  // These: OK, or what is wrong.
  absl::Status JudgeEnd(Chat& chat, const absl::Status& why);
  // The chat goes when its carried entries are lost: nobody can go on with it.
  absl::Status Open(std::size_t index);
  absl::Status OpenAll();
  absl::Status Create(const CreateSession& request, Oracle oracle);
  absl::Status CreateEmpty();
  absl::Status Fork();
  absl::Status Delete(std::size_t index);
  absl::Status Restart(bool power_cut);
  absl::Status LoseDevice(Chat& chat);
  absl::Status Rest();

  const EntryLayout layout_ = SmallLayout();
  const Faults faults_;
  const bool may_flip_;  // reads come wrong
  std::mt19937_64 random_;
  RandomOperations operations_;
  const std::string directory_;
  FaultyDisk disk_;
  std::shared_ptr<UnsyncedFs> files_;  // below the metadata of the engine that runs
  std::unique_ptr<Engine> engine_;
  std::vector<Chat> chats_;
  std::vector<Sealed> sealed_;
  bool rotten_ = false;  // some page was corrupted
  bool gone_ = false;    // the device
  bool ending_ = false;  // no faults any more
  std::map<std::string, int> counts_;
};

}  // namespace cairn::kv
