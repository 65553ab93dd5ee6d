// Engine keeps the entries of sessions on a device and their rows in a MetaStore: docs/kv-node.md,
// and docs/architecture.md, "A token's way". It is a library: the daemon is one host of it, an
// app's own process may be another.
//
// Threading:  every method may be called from any thread: it posts to the engine thread's bounded
//             inbox and returns. Callbacks run on the engine thread ("kv-engine"): they must not
//             block and must not call back into a method that waits.
// Limits:     the inbox holds kInboxMax messages; a full one makes Post-like methods answer
//             UNAVAILABLE at once. A channel holds at most kChannelQueueMax operations that are not
//             applied yet: see Channel::Submit.
// Durability: what a callback promises is said at each method. Session-visible and durable are two
//             things.
// Errors:     as in proto/cairn/kv/v1/kv.proto.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/random_bytes.h"
#include "common/base/status.h"
#include "common/kv/messages.h"
#include "kv-node/cache/arena.h"
#include "kv-node/cache/replacement.h"
#include "kv-node/device/device.h"
#include "kv-node/engine/inspection.h"
#include "kv-node/layout/part.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

struct EngineOptions {
  // Behaviour.
  // Sessions that may be attached at once: each costs memory for its rows.
  std::int32_t attached_sessions_max = 16;
  // Sessions of one app in all.
  std::int32_t sessions_max = 10000;
  // How long an attachment waits for its channel. Its owner may have died, or given up, in between.
  std::chrono::milliseconds channel_wait_max{30000};
  // How long a session that is ephemeral stays when nobody is attached to it.
  std::chrono::milliseconds abandoned_after{30000};

  // Performance.
  // Bytes of pending entries (not on flash yet) over all sessions, before clusters that fill pages
  // with them are placed, and else a session's are logged ahead of its checkpoint.
  std::int64_t pending_bytes_max = std::int64_t{2} << 20;
  // Bytes of device reads and writes in flight, and of a session's fetch replies that are not sent
  // yet; one fetch goes beyond. What other sessions' clients leave unread does not count.
  std::int64_t io_bytes_max = std::int64_t{4} << 20;
  // Shared memory for the cache of what was read, of each app; 0: none, every fetch reads. Else
  // kArenaBytesMin or more.
  std::int64_t arena_bytes_max = std::int64_t{16} << 20;
  ReplacementPolicy replacement = ReplacementPolicy::kClusterAligned;
  // Index rows of a layer that are kept unpacked before they are packed into a run.
  std::int64_t index_changed_min = 64;
  // Memory of a session's unpacked rows. Above it the layers that changed most are packed, however
  // little that is.
  std::int64_t index_changed_bytes_max = std::int64_t{5} << 20;
  // A cluster is placed, at idle or for room, when it has this many unplaced entries. A child of a
  // Replace with fewer is pending like what was appended.
  std::int32_t place_entries_min = 256;
  // Children of one Replace that go to pools or to the table of pending entries. More at once are
  // clusters of a prompt: they lie side by side in a log run, in the order of their ids.
  std::int32_t pooled_children_max = 64;
  // Whether clusters that are fetched together are placed together.
  bool co_retrieval = true;
  // Whether to place at idle.
  bool place_at_idle = true;
  // Whoever asks is in this process and has the answers themselves: they are its memory, and none
  // of io_bytes_max. A step holds those of a layer while it waits for the last of them, which must
  // not wait for the others to be given back.
  bool answers_are_held = false;
  // A fetch reads through a hole of up to this many bytes between two pieces that it needs, instead
  // of asking the device twice; 0: never. Larger: fewer requests, more bytes and memory.
  std::int64_t merge_gap_bytes = 0;
  // The longest piece behind a hole that is read like this.
  std::int64_t merge_piece_bytes_max = std::int64_t{64} << 10;
  // Whether sealed segments are placed again in packed runs, while nothing else is to be done: it
  // takes fewer reads to fetch from them, and every sealed byte is written once more.
  bool defragment = false;
  // How long no operation must have come before that goes on.
  std::chrono::milliseconds defragment_idle{100};
  // Whether two parts share a pool. False: one part a pool; what shares one already stays as it is.
  bool pool_sharing = true;
  // False for a memory-only engine: no flush, no durable epochs.
  bool durable = true;

  absl::Status Validate() const;
};

// What one channel hears. Called on the engine thread.
class ChannelObserver {
 public:
  virtual ~ChannelObserver() = default;
  // A checkpoint became durable.
  virtual void OnCheckpointed(OpSeq op_seq, const Checkpointed& checkpointed) = 0;
  // The changing operation failed: those behind it are refused until it is sent again. With op_seq
  // 0: the channel ended (the session was opened by another, deleted, or the engine stops); nothing
  // more will come.
  virtual void OnFailure(OpSeq op_seq, const absl::Status& status) = 0;
  // Nothing else will be said of the changing operation: it was applied before, or is refused with
  // one that failed.
  virtual void OnPassedOver(OpSeq /*op_seq*/) {}
  virtual void OnReply(RequestId request_id, absl::StatusOr<ReadReply> reply) = 0;
  // An operation left the queue: there is room again. Used for back-pressure.
  virtual void OnRoom() = 0;
};

// One attached session's stream of operations, applied in the order of Submit.
class Channel {
 public:
  virtual ~Channel() = default;  // ends the attachment: what no checkpoint covers is dropped
  // Queues a changing operation or a read. Never blocks. The caller keeps at most kChannelQueueMax
  // operations that OnRoom has not given back; more is answered by false and the operation is not
  // queued.
  virtual bool Submit(OpSeq op_seq, ChangingOperation operation) = 0;
  // A read is refused (FAILED_PRECONDITION through OnReply) unless `after` has been applied.
  virtual bool Submit(RequestId request_id, OpSeq after, ReadOperation operation) = 0;
};

// Of EngineOptions::merge_gap_bytes.
inline constexpr std::int64_t kMergeGapBytesMax = std::int64_t{256} << 10;
inline constexpr std::int32_t kChannelQueueMax = 64;
inline constexpr std::int32_t kInboxMax = 4096;
// Below this a fetch of a few large parts has no room.
inline constexpr std::int64_t kArenaBytesMin = std::int64_t{1} << 20;

using EngineTime = std::chrono::steady_clock::time_point;

// What an engine has from outside, beside its options.
struct EngineWorld {
  // Positioned so that page 0 and 1 are the superblock's.
  std::unique_ptr<Device> device;
  std::unique_ptr<MetaStore> meta;
  // Bytes that nobody guesses: of uids. Called on any thread.
  std::function<std::string(std::int64_t byte_count)> random_bytes = RandomBytes;
  // For what is kept in rows.
  std::function<std::int64_t()> unix_microseconds = UnixMicroseconds;
  // Gives freed memory back to the system. Called on the threads that read metadata.
  std::function<void()> return_freed_memory = ReturnFreedMemory;
};

template <typename T>
using Callback = std::function<void(absl::StatusOr<T>)>;

class Engine {
 public:
  // Rebuilds the free map from the allocation records; FAILED_PRECONDITION if two of them overlap.
  // Starts the engine thread. `store_id` is the superblock's: checksums are seeded with it.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options,
                                                      const StoreId& store_id,
                                                      std::unique_ptr<Device> device,
                                                      std::unique_ptr<MetaStore> meta);
  virtual ~Engine() = default;  // finishes I/O in flight; attachments end

  // Who calls is told by the app. Sessions and segments of another app are as if they were not
  // there.
  virtual void Create(AppId app, CreateSession request,
                      Callback<SessionRef> done) = 0;  // durable at callback
  virtual void OpenSession(AppId app, OpenRequest request,
                           Callback<Attachment> done) = 0;  // epoch durable at callback
  virtual void ResumeSession(AppId app, ResumeRequest request, Callback<Attachment> done) = 0;
  virtual void CloseSession(AppId app, SessionId session, Epoch epoch,
                            Callback<std::monostate> done) = 0;
  virtual void DeleteSession(AppId app, SessionRef session,
                             Callback<std::monostate> done) = 0;  // durable at callback
  virtual void GetSession(AppId app, SessionRef session, ListDetail detail,
                          Callback<SessionInfo> done) = 0;
  virtual void ListSessions(AppId app, ListDetail detail,
                            Callback<std::vector<SessionInfo>> done) = 0;  // newest first
  virtual void SealSession(AppId app, SessionRef session,
                           Callback<SealedSegment> done) = 0;  // durable at callback
  virtual void SupersedeSession(AppId app, Supersession request,
                                Callback<std::monostate> done) = 0;  // durable at callback
  // Of the device and of what all apps write to it; sessions and cache are those of the app.
  virtual void GetStats(AppId app, Callback<KvStats> done) = 0;
  // What is in memory of a session that somebody is attached to; NOT_FOUND where nobody is, and for
  // a cluster that does not exist. Waits for no operation, and none waits for it.
  virtual void Inspect(AppId app, SessionRef session, InspectionQuestion question,
                       Callback<InspectionAnswer> done) = 0;
  // The shared memory that spans of the app's fetch replies may lie in, for other processes to map.
  // No two apps share any. Answers at once; spans of a later reply may name a granule that is not
  // in the answer yet.
  virtual std::vector<std::shared_ptr<const ArenaGranule>> ArenaGranules(AppId app) const = 0;
  // Whether fetch replies may lie in shared memory at all.
  virtual bool has_arena() const = 0;

  // Binds an attachment (from Open or Resume) to a channel. `observer` outlives the channel's last
  // callback: both are kept by shared_ptr.
  virtual void Attach(AppId app, SessionId session, Epoch epoch,
                      std::shared_ptr<ChannelObserver> observer,
                      Callback<std::shared_ptr<Channel>> done) = 0;
};

}  // namespace cairn::kv
