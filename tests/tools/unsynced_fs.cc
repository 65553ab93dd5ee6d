#include "tests/tools/unsynced_fs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/tools/sector.h"

// RocksDB loses the memtable that it had just made when the log that goes with it cannot be made.
// NOLINTNEXTLINE(bugprone-reserved-identifier): LeakSanitizer asks for this name.
extern "C" const char* __lsan_default_suppressions();
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {
  return "leak:rocksdb::DBImpl::SwitchMemtable\n";
}

namespace cairn::kv {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

bool IsLog(const std::string& name) { return name.ends_with(".log"); }

bool IsTable(const std::string& name) { return name.ends_with(".sst"); }

}  // namespace

class UnsyncedFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  UnsyncedFile(UnsyncedFs& fs, std::string name, std::unique_ptr<rocksdb::FSWritableFile>&& base)
      : FSWritableFileOwnerWrapper(std::move(base)), fs_(fs), name_(std::move(name)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return Append(data, options, rocksdb::DataVerificationInfo(), debug);
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    const MutexLock lock(fs_.mutex_);  // an operation happens before the cut or not at all
    IOStatus status = fs_.Alive();
    if (!status.ok() && fs_.MayGoOn(name_)) return IOStatus::OK();
    if (status.ok()) status = target()->Append(data, options, debug);
    if (status.ok()) {
      end_bytes_ += static_cast<std::int64_t>(data.size());
      fs_.Written(name_, end_bytes_);
    }
    return status;
  }
  IOStatus PositionedAppend(const Slice& data, std::uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    return PositionedAppend(data, offset, options, rocksdb::DataVerificationInfo(), debug);
  }
  IOStatus PositionedAppend(const Slice& data, std::uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo&, IODebugContext* debug) override {
    const MutexLock lock(fs_.mutex_);  // an operation happens before the cut or not at all
    IOStatus status = fs_.Alive();
    if (!status.ok() && fs_.MayGoOn(name_)) return IOStatus::OK();
    if (status.ok()) status = target()->PositionedAppend(data, offset, options, debug);
    if (status.ok()) fs_.Written(name_, static_cast<std::int64_t>(offset + data.size()));
    return status;
  }
  IOStatus Truncate(std::uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    const MutexLock lock(fs_.mutex_);  // an operation happens before the cut or not at all
    IOStatus status = fs_.Alive();
    if (status.ok()) status = target()->Truncate(size, options, debug);
    if (status.ok()) fs_.Truncated(name_, static_cast<std::int64_t>(size));
    return status;
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    const MutexLock lock(fs_.mutex_);
    IOStatus status = fs_.BeforeSync(name_);
    if (!status.ok() && fs_.MayGoOn(name_)) return IOStatus::OK();
    // What is durable is the model's to say: the disk below has nothing to wait for.
    if (status.ok()) status = target()->Flush(options, debug);
    if (status.ok()) fs_.Synced(name_);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }

 private:
  UnsyncedFs& fs_;
  const std::string name_;
  std::int64_t end_bytes_ = 0;
};

class UnsyncedDirectory : public rocksdb::FSDirectoryWrapper {
 public:
  UnsyncedDirectory(UnsyncedFs& fs, std::string name, std::unique_ptr<rocksdb::FSDirectory>&& base)
      : FSDirectoryWrapper(std::move(base)), fs_(fs), name_(std::move(name)) {}

  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return FsyncWithDirOptions(options, debug, rocksdb::DirFsyncOptions());
  }
  IOStatus FsyncWithDirOptions(const IOOptions& /*options*/, IODebugContext* /*debug*/,
                               const rocksdb::DirFsyncOptions& /*sync_options*/) override {
    const MutexLock lock(fs_.mutex_);  // an operation happens before the cut or not at all
    IOStatus status = fs_.Alive();
    if (status.ok()) fs_.DirectorySynced(name_);
    return status;
  }

 private:
  UnsyncedFs& fs_;
  const std::string name_;
};

UnsyncedFs::UnsyncedFs(const std::shared_ptr<rocksdb::FileSystem>& base, std::uint64_t seed)
    : FileSystemWrapper(base), random_(seed) {}

// RocksDB 7.8 with its assertions on aborts when a compaction cannot begin or finish a table that
// would be empty (SubcompactionState::SmallestUserKey). So tables seem to go on behind the cut:
// nobody can name them any more.
bool UnsyncedFs::MayGoOn(const std::string& name) const { return dead_ && IsTable(name); }

IOStatus UnsyncedFs::Alive() {
  if (full_) return IOStatus::NoSpace("injected");
  if (disk_broken_) return IOStatus::IOError("injected");
  return dead_ ? IOStatus::IOError("the power is off") : IOStatus::OK();
}

IOStatus UnsyncedFs::NewWritableFile(const std::string& name, const FileOptions& options,
                                     std::unique_ptr<rocksdb::FSWritableFile>* result,
                                     IODebugContext* debug) {
  const MutexLock lock(mutex_);
  IOStatus status = Alive();
  if (MayGoOn(name)) status = IOStatus::OK();
  std::unique_ptr<rocksdb::FSWritableFile> base;
  if (status.ok()) status = FileSystemWrapper::NewWritableFile(name, options, &base, debug);
  if (!status.ok()) return status;
  files_[name] = {};
  *result = std::make_unique<UnsyncedFile>(*this, name, std::move(base));
  return status;
}

IOStatus UnsyncedFs::NewDirectory(const std::string& name, const IOOptions& options,
                                  std::unique_ptr<rocksdb::FSDirectory>* result,
                                  IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSDirectory> base;
  IOStatus status = FileSystemWrapper::NewDirectory(name, options, &base, debug);
  if (status.ok()) *result = std::make_unique<UnsyncedDirectory>(*this, name, std::move(base));
  return status;
}

IOStatus UnsyncedFs::DeleteFile(const std::string& name, const IOOptions& options,
                                IODebugContext* debug) {
  const MutexLock lock(mutex_);
  IOStatus status = Alive();
  if (status.ok()) status = FileSystemWrapper::DeleteFile(name, options, debug);
  if (status.ok()) files_.erase(name);
  return status;
}

IOStatus UnsyncedFs::RenameFile(const std::string& from, const std::string& to,
                                const IOOptions& options, IODebugContext* debug) {
  const MutexLock lock(mutex_);
  IOStatus status = Alive();
  if (status.ok()) status = FileSystemWrapper::RenameFile(from, to, options, debug);
  if (!status.ok()) return status;
  const auto file = files_.find(from);
  if (file != files_.end()) {
    files_[to] = file->second;
    files_[to].name_synced = true;
    files_.erase(file);
  }
  return status;
}

void UnsyncedFs::Written(const std::string& name, std::int64_t end_bytes) {
  FileState& file = files_[name];
  file.written_bytes = std::max(file.written_bytes, end_bytes);
}

void UnsyncedFs::Truncated(const std::string& name, std::int64_t size_bytes) {
  FileState& file = files_[name];
  file.written_bytes = size_bytes;
  file.synced_bytes = std::min(file.synced_bytes, size_bytes);
}

IOStatus UnsyncedFs::BeforeSync(const std::string& name) {
  if (IsLog(name)) ++log_sync_count_;
  if (!fail_sync_of_.empty() && name.find(fail_sync_of_) != std::string::npos) {
    fail_sync_of_.clear();
    return disk_full_ ? IOStatus::NoSpace("injected") : IOStatus::IOError("injected");
  }
  if (!cut_at_sync_of_.empty() && name.find(cut_at_sync_of_) != std::string::npos &&
      syncs_before_cut_-- == 0) {
    CutLocked(cut_tears_);
  }
  return dead_ ? IOStatus::IOError("the power is off") : IOStatus::OK();
}

void UnsyncedFs::Synced(const std::string& name) {
  FileState& file = files_[name];
  file.synced_bytes = file.written_bytes;
}

void UnsyncedFs::DirectorySynced(const std::string& directory) {
  for (auto& [name, file] : files_) {
    if (std::filesystem::path(name).parent_path() == std::filesystem::path(directory)) {
      file.name_synced = true;
    }
  }
}

void UnsyncedFs::PowerCut() {
  MutexLock lock(mutex_);
  CutLocked(/*tears=*/true);
}

void UnsyncedFs::CutAtSyncOf(const std::string& part, std::int64_t syncs_before) {
  SetCut(part, syncs_before, /*tears=*/true);
}

void UnsyncedFs::KillAtSyncOf(const std::string& part, std::int64_t syncs_before) {
  SetCut(part, syncs_before, /*tears=*/false);
}

void UnsyncedFs::SetCut(const std::string& part, std::int64_t syncs_before, bool tears) {
  MutexLock lock(mutex_);
  syncs_before_cut_ = syncs_before;
  cut_at_sync_of_ = part;
  cut_tears_ = tears;
}

void UnsyncedFs::FillDisk() {
  MutexLock lock(mutex_);
  full_ = true;
}

void UnsyncedFs::BreakDisk() {
  MutexLock lock(mutex_);
  disk_broken_ = true;
}

void UnsyncedFs::MendDisk() {
  MutexLock lock(mutex_);
  full_ = false;
  disk_broken_ = false;
}

void UnsyncedFs::FailNextSyncOf(const std::string& part, bool disk_full) {
  MutexLock lock(mutex_);
  fail_sync_of_ = part;
  disk_full_ = disk_full;
}

std::int64_t UnsyncedFs::log_sync_count() {
  MutexLock lock(mutex_);
  return log_sync_count_;
}

std::int64_t UnsyncedFs::lost_bytes() {
  MutexLock lock(mutex_);
  return lost_bytes_;
}

void UnsyncedFs::CutLocked(bool tears) {
  if (dead_) return;
  dead_ = true;
  if (!tears) return;
  for (const auto& [name, file] : files_) {
    if (!file.name_synced) {
      std::filesystem::remove(name);
      lost_bytes_ += file.written_bytes;
    } else if (file.written_bytes > file.synced_bytes) {
      Tear(name, file);
    }
  }
}

void UnsyncedFs::Tear(const std::string& name, const FileState& file) {
  const std::int64_t unsynced = file.written_bytes - file.synced_bytes;
  const auto kept = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(unsynced + 1));
  lost_bytes_ += unsynced - kept;
  const std::int64_t end = file.synced_bytes + kept;
  std::string bytes(static_cast<std::size_t>(end), '\0');
  std::ifstream(name, std::ios::binary).read(bytes.data(), end);
  for (std::int64_t at = file.synced_bytes; IsLog(name) && at < end;) {
    const std::int64_t next = std::min(end, (at / kSectorBytes + 1) * kSectorBytes);
    const std::uint64_t fate = random_() % 4;  // zeros, garbage, or as written
    for (; at < next; ++at) {
      char& byte = bytes[static_cast<std::size_t>(at)];
      if (fate < 2) byte = fate == 0 ? '\0' : static_cast<char>(random_() % 256);
    }
  }
  // A new file in its place: the writer's Close() cuts what it has open to the length that it
  // knows.
  const std::string torn = name + ".torn";
  std::ofstream(torn, std::ios::binary) << bytes;
  std::filesystem::rename(torn, name);
}

}  // namespace cairn::kv
