// A RocksDB file system that forgets what was not synced. It syncs nothing itself: the files are as
// durable as a test needs them, and it need not wait for the machine's disk.
//
// Fault model, from one seed:
// - PowerCut() cuts every file at a random length between what was synced and what was written. In
//   what is left of a log's unsynced bytes, 512-byte sectors may be zeros or garbage; other files
//   are only cut, as a file system leaves them that lengthens a file after its bytes are on the
//   disk (ext4, xfs). RocksDB need not open a manifest with garbage at its end. Files whose
//   directory was not synced since they were made disappear. Renames and deletions are durable at
//   once.
// - After it nothing can be written, renamed, deleted or synced (of tables that were being written
//   it only seems so): the store that was open must be closed and opened again on another file
//   system.
// - CutAtSyncOf(): the power goes off in place of the next sync of such a file, or of a later one.
//   KillAtSyncOf(): the process ends there, and what it had written stays as it is.
//   FailNextSyncOf(), FailNextLogSync(): it fails with EIO or ENOSPC.
// - FillDisk(), BreakDisk(): from now on nothing has room, in no file, or every write fails with
//   EIO; until MendDisk().
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

#include <rocksdb/file_system.h>

#include "common/base/mutex.h"

namespace cairn::kv {

class UnsyncedFs : public rocksdb::FileSystemWrapper {
 public:
  UnsyncedFs(const std::shared_ptr<rocksdb::FileSystem>& base, std::uint64_t seed);

  void PowerCut();
  // `part` of the file's name: ".log", "MANIFEST", ".sst".
  void CutAtSyncOf(const std::string& part, std::int64_t syncs_before = 0);
  void KillAtSyncOf(const std::string& part, std::int64_t syncs_before = 0);
  void FailNextSyncOf(const std::string& part, bool disk_full = false);
  void FailNextLogSync(bool disk_full = false) { FailNextSyncOf(".log", disk_full); }
  void FillDisk();
  void BreakDisk();
  void MendDisk();
  // Syncs of logs that were asked for.
  std::int64_t log_sync_count();
  // Bytes that the power cut took away.
  std::int64_t lost_bytes();

  const char* Name() const override { return "UnsyncedFs"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

 private:
  friend class UnsyncedFile;
  friend class UnsyncedDirectory;
  struct FileState {
    std::int64_t written_bytes = 0;
    std::int64_t synced_bytes = 0;
    bool name_synced = false;
  };

  rocksdb::IOStatus Alive() CAIRN_REQUIRES(mutex_);
  bool MayGoOn(const std::string& name) const CAIRN_REQUIRES(mutex_);
  void Written(const std::string& name, std::int64_t end_bytes) CAIRN_REQUIRES(mutex_);
  void Truncated(const std::string& name, std::int64_t size_bytes) CAIRN_REQUIRES(mutex_);
  // What the sync of a file must answer; OK when it may go on to the base.
  rocksdb::IOStatus BeforeSync(const std::string& name) CAIRN_REQUIRES(mutex_);
  void Synced(const std::string& name) CAIRN_REQUIRES(mutex_);
  void DirectorySynced(const std::string& directory) CAIRN_REQUIRES(mutex_);
  void SetCut(const std::string& part, std::int64_t syncs_before, bool tears);
  void CutLocked(bool tears) CAIRN_REQUIRES(mutex_);
  void Tear(const std::string& name, const FileState& file) CAIRN_REQUIRES(mutex_);

  Mutex mutex_;
  std::mt19937_64 random_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, FileState> files_ CAIRN_GUARDED_BY(mutex_);
  bool dead_ CAIRN_GUARDED_BY(mutex_) = false;
  bool full_ CAIRN_GUARDED_BY(mutex_) = false;
  bool disk_broken_ CAIRN_GUARDED_BY(mutex_) = false;
  std::string cut_at_sync_of_ CAIRN_GUARDED_BY(mutex_);  // empty: no
  bool cut_tears_ CAIRN_GUARDED_BY(mutex_) = false;
  std::int64_t syncs_before_cut_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::int64_t log_sync_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string fail_sync_of_ CAIRN_GUARDED_BY(mutex_);  // empty: no
  bool disk_full_ CAIRN_GUARDED_BY(mutex_) = false;    // the answer of that failure
  std::int64_t lost_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv
