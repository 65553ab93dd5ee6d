// AttachedSession applies one session's operations in order: it owns the queue of its channel, the
// session's state, the placings and the checkpoint in progress. One object lives from an attach to
// its end; the next attach makes a new one from what was committed (rule 4).
//
// Threading:  the engine thread.
// Blocking:   never: an operation that must wait (for room, for I/O, for a checkpoint) stays at the
//             head of the queue, and Pump tries again.
// Errors:     an operation that fails is reported to the observer, and those behind it are refused
//             until its number comes again (rule 14). A failed write ends the attachment.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kv-node/engine/co_fetches.h"
#include "kv-node/engine/engine_context.h"
#include "kv-node/engine/fetch_reader.h"
#include "kv-node/engine/pool_table.h"
#include "kv-node/engine/read_ahead.h"
#include "kv-node/engine/session_host.h"
#include "kv-node/engine/session_loader.h"
#include "kv-node/engine/session_state.h"

namespace cairn::kv {

// What came with Submit.
struct QueuedOperation {
  OpSeq op_seq;          // of a changing operation; 0 for a read
  RequestId request_id;  // of a read or a hint
  OpSeq after;           // of a read
  std::variant<ChangingOperation, ReadOperation, HintOperation> operation;
};

// A session spills when the table of pending entries is full and it has this share of it: with
// less, every operation would write a page. So the table holds 1 + sessions / kSpillShare times its
// limit at most.
inline constexpr std::int64_t kSpillShare = 16;

struct LogItem;

class AttachedSession final : public SessionHost {
 public:
  AttachedSession(EngineContext& context, SessionId id, LoadedState loaded);
  ~AttachedSession();
  AttachedSession(const AttachedSession&) = delete;
  AttachedSession& operator=(const AttachedSession&) = delete;

  SessionId id() const override { return id_; }
  Epoch epoch() const { return row_.epoch; }
  const SessionRow& row() const { return row_; }
  const SessionState& state() const { return *state_; }
  // Memory of its rows, and of what is known of their places.
  bool HasInChain(SegmentId segment) const {
    return std::any_of(state_->chain().begin(), state_->chain().end(),
                       [segment](const SegmentRows& rows) { return rows.id == segment; });
  }
  std::int64_t row_bytes() const {
    return state_->row_bytes() + pools_->memory_bytes() + co_fetches_.memory_bytes() +
           read_ahead_.memory_bytes();
  }
  Attachment attachment() const;

  void BindObserver(std::shared_ptr<ChannelObserver> observer) { observer_ = std::move(observer); }
  bool failed() const { return failed_; }
  bool bound() const { return observer_ != nullptr; }
  // Since when it has waited for its channel.
  EngineTime unbound_since() const { return unbound_since_; }
  // Gives the attachment, to which no channel came, to a later attempt of its owner. False: there
  // is a channel, or it has failed.
  bool TakeUnbound(const AttachAttempt& attempt);
  void Enqueue(QueuedOperation operation) { queue_.push_back(std::move(operation)); }
  // Applies what can be applied now.
  void Pump();
  // Starts one placing if a cluster has enough unplaced entries. Returns whether it did.
  bool PlaceAtIdle();
  // Takes no more operations, tells the observer `why`, and calls `then` once no I/O and no commit
  // is in flight. What is in memory only is dropped with the object.
  void Stop(const absl::Status& why, std::function<void()> then);
  bool idle() const { return queue_.empty() && io_count_ == 0 && checkpoint_ == nullptr; }

 private:
  struct PlaceJob;
  struct CheckpointJob;
  struct LogPlan;
  struct LogRuns;
  struct ChildPart;
  // ---- SessionHost ----
  EngineContext& context() override { return context_; }
  SessionState& state() override { return *state_; }
  bool stopped() const override { return stopped_; }
  bool ends() const override { return stopped_ || failed_; }
  std::shared_ptr<void> HoldIo() override;
  bool HasIoRoom() override;
  void Reply(RequestId request_id, absl::StatusOr<ReadReply> reply) override;

  // ---- attached_session.cc: the queue ----
  Applied ApplyHead(QueuedOperation& head);
  Applied ApplyChange(OpSeq op_seq, ChangingOperation& operation);
  Applied ApplyAppend(OpSeq op_seq, Append& op);
  // Whether pending entries and buffers leave room for more; if not, starts placings, and a spill
  // where they are not enough.
  bool HasRoom();
  bool WantsSpill() const;
  Applied ApplyStageCarried(OpSeq op_seq, StageCarried& op);
  // The layer and head that an operation names, if it names anything in them or not.
  absl::Status CheckPlace(const ChangingOperation& operation) const;
  absl::Status CheckAppend(const Append& op) const;
  absl::Status CheckCarried(std::int32_t layer, const CarriedEntries& entries) const;
  absl::Status CheckEntries(std::int32_t layer, std::int32_t head, const Positions& positions,
                            std::int64_t bytes) const;
  Applied Finish(OpSeq op_seq, const absl::Status& status);
  void Fail(const absl::Status& status);
  void TellFailure();

  // ---- session_reads.cc ----
  Applied ApplyRead(RequestId request_id, const ReadOperation& operation);
  Applied StartGetCarried(RequestId request_id, const GetCarried& op);
  absl::StatusOr<ReadReply> NeighboursOf(const GetNeighbours& op) const;

  // ---- session_index.cc ----
  Applied StartGetIndex(RequestId request_id, const GetIndex& op);
  std::int64_t PutIndexOf(const IndexSource& source, std::int32_t layer, const PageSet& pages,
                          std::map<ClusterKey, IndexRow>& rows) const;
  // Takes the rows.
  static absl::StatusOr<ReadReply> IndexReplyOf(std::map<ClusterKey, IndexRow>& rows);
  std::optional<std::int32_t> LayerToPack() const;
  // Packs the layers whose turn it is, as far as memory allows. Whether it waits for the device: a
  // checkpoint comes again.
  bool PackIndex();
  void PackLayer(std::int32_t layer, const PageSet& pages);
  // `pages`: of the layer's old run.
  absl::Status WriteIndexRun(std::int32_t layer, const PageSet& pages);
  void DropIndexRun(const IndexRun& run);
  std::int64_t LogPageCountMax() const;
  // Makes the parts of `run` and writes them. REQUIRES: there are rows.
  absl::Status PackRecords(const std::map<ClusterKey, IndexRow>& rows, IndexRun& run);

  // ---- session_place.cc ----
  // Places the fullest of the clusters that have enough for it, or fill a page, until half of what
  // may be pending is, as far as jobs can start.
  void PlaceForRoom();
  // Begins to place a cluster's log parts and pending entries. False if it cannot be done now.
  bool StartPlacing(const ClusterKey& key);
  // Takes what is to be placed into the job. False if there is nothing.
  bool TakeEntries(PlaceJob& job) const;
  static void TakePendingChunks(const std::vector<PendingChunk>& chunks, std::int64_t entry_bytes,
                                std::int64_t room_max, PlaceJob& job);
  // Takes the place that was kept for the cluster if it is still right. False: it is written now.
  bool TakePlanned(PlaceJob& job, std::int64_t new_bytes);
  // Where they go. False: later, because the pool is being written.
  bool ChoosePlace(PlaceJob& job);
  void FinishPlacing(const std::shared_ptr<PlaceJob>& job, const PageSet& pages);
  void WritePlaced(const std::shared_ptr<PlaceJob>& job, const PageSet& pages);
  std::int64_t UnplacedCount(const ClusterKey& key) const;
  void NoteUnplaced(const ClusterKey& key);
  // REQUIRES: nothing is pending, nothing was noted.
  void NoteAllUnplaced();
  // Pages [first, first + buffer) are written; a failure ends the attachment.
  void Write(const ExtentRef& extent, PageIndex first, SharedBuffer buffer, WriteCause cause);
  bool IsBeingWritten(PageIndex page) const { return context_.io->IsBeingWritten(page); }
  PoolTable::WriteCheck write_check() const {
    return [this](PageIndex page) { return IsBeingWritten(page); };
  }
  // A fresh pool with room for `times` as many bytes, as far as the largest has it; on nearly full
  // flash one that just holds them.
  absl::StatusOr<ExtentRef> AllocatePool(std::int64_t bytes, std::int64_t times) const;
  std::int64_t TimesForOnePart(std::int64_t entry_count) const;
  void NoteDropped(const std::vector<Part>& parts);

  // ---- session_related.cc ----
  // Places beside the clusters that are fetched together with this one, strongest first.
  std::vector<PoolTable::Place> RelatedPlaces(const ClusterKey& key) const;
  // Whether the cluster has a part in a pool of the open segment.
  bool HasPoolPart(const ClusterKey& key) const;
  // Whether a place for its first part in a pool should be chosen together with others'.
  bool WantsPlan(const ClusterKey& key) const;
  // Chooses places for those of the candidates that want it and are linked to each other. Returns
  // them in the order of their places.
  std::vector<ClusterKey> PlanTogether(LayerHead owner, const std::vector<ClusterKey>& candidates);
  void KeepPools(LayerHead owner, std::span<const ClusterId> run,
                 const std::map<ClusterId, std::int64_t>& bytes_of);

  // ---- session_replace.cc ----
  Applied ApplyReplace(OpSeq op_seq, Replace& op);
  void FinishReplace(OpSeq op_seq, const std::shared_ptr<Replace>& op, const PageSet& pages);
  // The entries of children and evicted: views into `pages`, the operation and `keep`.
  absl::Status CollectReplaced(const Replace& op, const PageSet& pages,
                               std::map<std::int64_t, std::string_view>& entries,
                               std::vector<PendingChunk>& keep) const;
  std::vector<std::size_t> OrderOfChildren(const Replace& op) const;
  // What a cluster is placed by: none with co_retrieval switched off.
  std::span<const ClusterLink> PlacementLinks(const ClusterKey& key) const;
  bool StaysPending(const Replace& op, const ChildCluster& child) const;
  void KeepPending(const Replace& op, const ChildCluster& child,
                   const std::map<std::int64_t, std::string_view>& entries);
  // The parts of the other children, in their pools, two to a pool where they fit.
  absl::StatusOr<std::vector<ChildPart>> AllocateChildren(const Replace& op) const;
  void WriteChildren(const std::map<std::int64_t, std::string_view>& entries,
                     std::int64_t entry_bytes, std::span<ChildPart> sharing);
  // The rows change; then the parents' parts are gone.
  void ApplyChecked(const Replace& op);
  absl::Status ReplaceInPools(const Replace& op,
                              const std::map<std::int64_t, std::string_view>& entries);
  absl::Status ReplaceInLog(const Replace& op,
                            const std::map<std::int64_t, std::string_view>& entries);

  // ---- session_checkpoint.cc ----
  Applied ApplyCheckpoint(OpSeq op_seq, Checkpoint& op);
  absl::Status CheckCheckpoint(const Checkpoint& op) const;
  bool Seals(const Checkpoint& op) const;
  void AdvanceCheckpoint();
  void CommitCheckpoint();
  void Committed(const absl::Status& status);
  absl::Status Cut(CheckpointJob& job, LogPlan& plan, const PageSet& pages);
  // ---- session_capture.cc ----
  void CaptureRows(CheckpointJob& job);
  void CaptureLinks(CheckpointJob& job);
  void CaptureAllocation(CheckpointJob& job);
  ExtentSet NamedLogRuns() const;
  void CaptureTokens(CheckpointJob& job);

  // ---- session_plan.cc: what goes to the log ----
  // The record of a carried entry of the open segment, found by its layer, head and position; null:
  // it has none.
  using RecordOf = std::function<const Part*(const ClusterKey& key, std::int64_t position)>;
  RecordOf CarriedRecords() const;
  // For a checkpoint: what is pending and what is staged to be carried.
  absl::Status PlanLog(LogPlan& plan) const;
  // For a spill: what is pending; carried rows stay.
  void PlanSpill(LogPlan& plan) const;
  void PlanPending(const RecordOf& record_of, LogPlan& plan) const;
  absl::Status PlanCarried(const ClusterKey& key, const CarriedEntries& entries,
                           const RecordOf& record_of, LogPlan& plan) const;
  void PlanChunk(const ClusterKey& key, const PendingChunk& chunk, const RecordOf& record_of,
                 std::vector<LogItem>& items, std::int64_t& new_bytes) const;
  // Records that carried entries have already are written to the new run too.
  void PlanCarriedAgain(LogPlan& plan) const;
  void WriteAgain(const ClusterKey& key, LogItem& item, LogPlan& plan) const;
  void PlanStragglers(LogPlan& plan) const;
  ExtentBytes NamedLogBytes(const LogPlan& plan) const;
  ExtentSet RunsToWriteAgain(LogPlan& plan) const;
  void AddSparseRuns(const ExtentBytes& named_bytes, std::int64_t read_bytes, LogPlan& plan,
                     ExtentSet& again) const;
  ExtentSet SettledRuns(const LogPlan& plan, const ExtentBytes& named_bytes) const;

  // ---- session_log.cc ----
  // Of plan.parts, for a log run: what is linked goes first, along the links.
  std::vector<ClusterKey> OrderOfRows(const LogPlan& plan) const;
  absl::Status WriteLog(LogPlan& plan, const PageSet& pages);
  // Returns the bytes.
  std::int64_t WriteRuns(LogRuns& runs);
  // Moves all pending entries to a log run, ahead of the checkpoint.
  void Spill();
  void FinishSpill(LogPlan& plan, const PageSet& pages);
  // Runs that came and went since the last cut: no checkpoint is needed to give them back.
  void ForgetUnnamedRuns();
  void TakeRecords(LogPlan& plan, const PageSet& pages);
  static void DropAgain(LogPlan& plan);
  absl::Status AllocateRuns(LogPlan& plan, LogRuns& runs) const;
  std::int64_t CarriedRecordBytes(const LogPlan& plan) const;
  absl::Status AllocatePieces(LogPlan& plan, std::int64_t left_bytes, LogRuns& runs) const;
  std::vector<Part> MakeRecords(const ClusterKey& key, const std::vector<LogItem>& items,
                                LogRuns& runs) const;

  EngineContext& context_;
  const SessionId id_;
  SessionRow row_;          // as committed, but for the owner's attempts behind this attach
  SegmentRow segment_row_;  // of the open segment
  const std::int64_t policy_token_count_;
  EngineTime unbound_since_ = context_.now;
  std::unique_ptr<SessionState> state_;
  std::shared_ptr<PoolTable> pools_;  // of the open segment
  CoFetches co_fetches_;
  FetchReader fetch_reader_;
  ReadAhead read_ahead_;
  std::shared_ptr<ChannelObserver> observer_;

  std::deque<QueuedOperation> queue_;
  OpSeq applied_;
  OpSeq refused_;                  // the failed operation; 0: none
  bool head_in_progress_ = false;  // the head of the queue waits for its own I/O
  bool stopped_ = false;
  bool failed_ = false;          // a write failed: everything is refused until the channel ends
  absl::Status untold_failure_;  // from before there was a channel
  std::function<void()> stop_then_;
  int io_count_ = 0;

  // Entries staged for the next checkpoint, and the policy's state.
  std::map<ClusterKey, CarriedEntries> staged_;
  PolicyRow policy_;
  std::set<ClusterKey> carried_before_;  // carried rows of the last checkpoint
  // Token ids from the last partly filled block of the committed ones on.
  std::vector<std::int32_t> tail_tokens_;
  std::int64_t tail_start_ = 0;

  // Places that are kept for clusters whose first part in a pool is to come. Kept until the next
  // cut or Replace at most.
  struct PlannedEnd {
    ExtentRef extent;
    Direction direction = Direction::kUp;
    std::shared_ptr<void> kept;
  };
  std::map<ClusterKey, PlannedEnd> planned_;
  // Layers that could not be packed -> checkpoints until they are tried again.
  std::map<std::int32_t, int> index_refused_;
  std::set<ClusterKey> placing_;
  std::set<ClusterKey> idle_candidates_;  // those with place_entries_min unplaced entries or more
  // Since the table was full, so that one that cannot be placed (flash is full, its record is
  // damaged) is not tried for ever.
  std::set<ClusterKey> tried_for_room_;
  bool place_waits_ = false;  // a placing that would make room waits for a write to end
  absl::Status place_error_;  // why the last placing or spill could not begin: flash is full
  bool spill_failed_ =
      false;  // after it had read; the operation that waits for it is to be refused
  std::set<std::uint64_t> writes_in_flight_;
  std::uint64_t write_seq_ = 0;
  std::unique_ptr<CheckpointJob> checkpoint_;

  // Space of the open segment: what its last cut named, and the log runs that came and went since.
  std::map<std::int64_t, RegionBits> regions_;
  std::vector<ExtentRef> new_extents_;
  std::vector<ExtentRef> dropped_extents_;
  std::vector<ExtentRef> log_extents_;
};

}  // namespace cairn::kv
