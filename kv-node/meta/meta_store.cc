#include "kv-node/meta/meta_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <thread>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/utilities/write_batch_with_index.h>

#include "common/base/check.h"
#include "common/base/fail_point.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"
#include "common/log/log.h"
#include "kv-node/meta/meta_queue.h"
#include "kv-node/meta/rocksdb_options.h"
#include "kv-node/meta/rocksdb_reader.h"
#include "kv-node/meta/sequence_check.h"
#include "kv-node/meta/store_place.h"

namespace cairn::kv {
namespace {

constexpr std::string_view kCleanCloseKey = "clean_close";
// Written to see whether the disk takes it, and removed.
constexpr char kProbeFile[] = "write-probe";

// A crash must not lose the store's directory after a commit in it was acknowledged.
absl::Status SyncParent(const std::string& path) {
  std::filesystem::path parent = std::filesystem::absolute(path + "/.").parent_path().parent_path();
  const int fd = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && (FailPoint("the name of the metadata's directory is not synced") ||
                                  fsync(fd) == 0);
  const int error_number = errno;
  if (fd >= 0) close(fd);
  if (!synced) return ErrnoStatus(error_number, fmt::format("fsync {}", parent.string()));
  return absl::OkStatus();
}

class RocksDbStore final : public MetaStore, private RocksDbReader {
 public:
  explicit RocksDbStore(MetaOptions options)
      : options_(std::move(options)), setup_(MakeRocksDbSetup(options_, MetaAccess::kUse)) {}
  ~RocksDbStore() override {
    queue_.Stop();
    if (thread_.joinable()) thread_.join();
    const std::optional<std::uint64_t> sequence = FlushAll();
    Close();
    if (sequence && options_.on_clean_close) options_.on_clean_close(*sequence);
  }
  RocksDbStore(const RocksDbStore&) = delete;
  RocksDbStore& operator=(const RocksDbStore&) = delete;

  absl::Status Start() {
    // It would make the directory itself, but complain first that there is none.
    CAIRN_RETURN_IF_ERROR(FromRocksDb(setup_.options.env->CreateDirIfMissing(options_.path),
                                      fmt::format("make the directory {}", options_.path)));
    CAIRN_RETURN_IF_ERROR(OpenFiles());
    if (!options_.in_memory) {
      CAIRN_RETURN_IF_ERROR(SyncParent(options_.path));
      place_.Remember({options_.extent_path, options_.path, options_.path + "/IDENTITY"});
    }
    thread_ = StartThread("kv-meta", [this] { RunQueue(); });
    return absl::OkStatus();
  }

  absl::Status Commit(MetaBatch batch, CommitDone done) override {
    CAIRN_CHECK(done != nullptr);
    return queue_.Add({std::move(batch), std::move(done), nullptr});
  }

  absl::Status Run(Task task) override {
    CAIRN_CHECK(task != nullptr);
    return queue_.Add({{}, nullptr, std::move(task)});
  }

  MetaReader& reader() override { return *this; }
  std::int64_t read_bytes() const override { return RocksDbReader::read_bytes(); }

  void ExpectExtentBytes(std::int64_t bytes_min) override { extent_bytes_min_ = bytes_min; }

  // Of the last commit that was acknowledged.
  std::uint64_t latest_sequence() const override { return durable_sequence_; }

  MetaWriteStats write_stats() override {
    MetaWriteStats out;
    out.table_bytes = setup_.watch->table_bytes();
    MutexLock lock(mutex_);
    out.log_bytes = stats_.written_bytes;
    return out;
  }

  MetaStats stats() override {
    MetaStats out;
    {
      MutexLock lock(mutex_);
      out = stats_;
    }
    out.queued_count = queue_.count();
    out.block_cache_bytes = static_cast<std::int64_t>(setup_.block_cache->GetUsage());
    out.memtable_bytes = Property("rocksdb.cur-size-all-mem-tables");
    out.table_reader_bytes = Property("rocksdb.estimate-table-readers-mem");
    return out;
  }

 private:
  absl::Status Settled() override { return broken_; }

  absl::Status OpenFiles() {
    rocksdb::DB* db = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    CAIRN_RETURN_IF_ERROR(FromRocksDb(
        rocksdb::DB::Open(setup_.options, options_.path, setup_.families, &handles, &db),
        fmt::format("open the metadata store {}", options_.path)));
    Attach(db, handles);
    durable_sequence_ = db->GetLatestSequenceNumber();
    return absl::OkStatus();
  }

  std::int64_t Property(const char* name) {
    std::int64_t sum = 0;
    const Use use(*this);
    if (use.db() == nullptr) return 0;
    for (rocksdb::ColumnFamilyHandle* handle : Handles()) {
      std::uint64_t value = 0;
      if (use.db()->GetIntProperty(handle, name, &value)) sum += static_cast<std::int64_t>(value);
    }
    return sum;
  }

  void RunQueue() {
    while (true) {
      // A group is released before the next wait: callbacks may hold what others wait for.
      const std::vector<MetaQueue::Item> group = queue_.Next(NextLook());
      // Who commits is answered by what the disk does now, not a second ago.
      const auto pause =
          group.empty() ? options_.recover_each : options_.recover_each / kCommitRecoverShare;
      if (!broken_.ok() && std::chrono::steady_clock::now() >= failed_time_ + pause) Recover();
      if (group.empty()) {
        if (queue_.HasEnded()) return;
        LookAtPlace().IgnoreError();  // commits are told
        continue;
      }
      if (group.front().task) {
        group.front().task(*this);
        continue;
      }
      const absl::Status status = Write(group);
      for (const MetaQueue::Item& item : group) item.done(status);
    }
  }

  // When to look at the files, or to open them anew, if nobody commits before.
  std::chrono::steady_clock::time_point NextLook() const {
    const auto look = std::chrono::steady_clock::now() + options_.look_each;
    return broken_.ok() ? look : std::min(look, failed_time_ + options_.recover_each);
  }

  // What is stored in files that nobody finds again is not durable.
  absl::Status LookAtPlace() {
    absl::Status status = place_.Check();
    if (status.ok()) status = CheckLength(options_.extent_path, extent_bytes_min_);
    const auto now = std::chrono::steady_clock::now();
    if (status.ok() && attached() && !options_.in_memory && (place_is_lost_ || now >= look_time_)) {
      status = CheckLiveFiles(db());
      look_time_ = now + options_.look_each;
    }
    const bool lost = !status.ok();
    if (lost != std::exchange(place_is_lost_, lost)) {
      if (lost) {
        LogError("store lost error=\"{}\"", Message(status));
        MutexLock lock(mutex_);
        ++stats_.lost_place_count;
      } else {
        LogInfo("store is back path={}", options_.path);
      }
    }
    return status;
  }

  // After a failed write or sync nothing is known about what reached the disk. Opening the files
  // tells: the log is read from them, up to what is whole of it.
  void Recover() {
    failed_time_ = std::chrono::steady_clock::now();
    if (options_.in_memory || !CanWrite()) return;
    Close();
    MetaOptions last = options_;
    last.sequence_min = std::max(options_.sequence_min, latest_sequence());
    last.wrap_file_system = nullptr;  // only looks, at what is there
    absl::Status status = CheckSequence(last);
    // Of what is open no more: what is opened may meet errors at once.
    setup_.watch->ForgetErrors();
    if (status.ok()) status = OpenFiles();
    if (!status.ok()) {
      if (broken_.ok()) broken_ = status;
      LogError("metadata store not opened again path={} error=\"{}\"", options_.path,
               Message(status));
      return;
    }
    broken_ = absl::OkStatus();
    {
      MutexLock lock(mutex_);
      ++stats_.recovered_count;
    }
    LogInfo("metadata store goes on path={}", options_.path);
  }

  // What RocksDB's threads met has it refuse the next commit, or hold one up later. While the disk
  // cannot be written commits are tried all the same.
  void RecoverFromDiskErrors() {
    const rocksdb::Status worst = setup_.watch->worst_error();
    if (worst.ok() || std::chrono::steady_clock::now() < failed_time_ + options_.recover_each) {
      return;
    }
    LogError("metadata store failed error=\"{}\"",
             Message(Explained(worst, "write the metadata store's tables")));
    Recover();
  }

  // Whether the disk takes as much as opening the files may write. While it does not, the open
  // database can be read.
  bool CanWrite() {
    rocksdb::Env* const env = setup_.options.env;
    const std::string path = options_.path + "/" + kProbeFile;
    const std::string zeros(static_cast<std::size_t>(options_.memtable_bytes), '\0');
    std::unique_ptr<rocksdb::WritableFile> file;
    rocksdb::Status status = env->NewWritableFile(path, &file, rocksdb::EnvOptions());
    if (status.ok()) status = file->Append(zeros);
    if (status.ok()) status = file->Fsync();
    file.reset();
    const bool removed = env->DeleteFile(path).ok();
    return status.ok() && removed;
  }

  absl::Status Write(const std::vector<MetaQueue::Item>& group) {
    CAIRN_RETURN_IF_ERROR(LookAtPlace());
    if (broken_.ok()) RecoverFromDiskErrors();
    if (!broken_.ok()) return broken_;
    rocksdb::WriteBatchWithIndex batch;
    for (const MetaQueue::Item& item : group) {
      for (const MetaBatch::Change& change : item.batch.changes()) {
        CAIRN_RETURN_IF_ERROR(FromRocksDb(Add(batch, change), "collect a batch"));
      }
    }
    setup_.watch->WaitForMemtables();
    rocksdb::WriteOptions write;
    write.sync = !options_.in_memory && !FailPoint("the log is not synced");
    rocksdb::WriteBatch& changes = *batch.GetWriteBatch();
    const std::size_t bytes = changes.GetDataSize();
    broken_ = Explained(db().Write(write, &changes), "commit to the metadata store");
    if (broken_.ok()) {
      durable_sequence_ = db().GetLatestSequenceNumber();
    } else {
      LogError("metadata store failed error=\"{}\"", ToStd(broken_.message()));
      failed_time_ = std::chrono::steady_clock::now();
    }
    MutexLock lock(mutex_);
    stats_.batch_count += static_cast<std::int64_t>(group.size());
    ++stats_.group_count;
    stats_.written_bytes += static_cast<std::int64_t>(bytes);
    return broken_;
  }

  // Every caller gets this answer until the files are opened anew, so it says what to do.
  absl::Status Explained(const rocksdb::Status& failed, std::string_view what) const {
    absl::Status status = FromRocksDb(failed, what);
    if (status.ok()) return status;
    std::string cure;  // that of a lack of descriptors is there already
    if (failed.IsNoSpace()) {
      cure = fmt::format("; free space on the file system of {}", options_.path);
    } else if (LackOfDescriptors(failed) == 0) {
      cure = fmt::format("; check the disk of {}", options_.path);
    }
    return {status.code(),
            fmt::format("{}{}: nothing that was acknowledged is lost, and cairn-kv-node goes on by "
                        "itself when it can write there",
                        Message(status), cure)};
  }

  rocksdb::Status Add(rocksdb::WriteBatchWithIndex& batch, const MetaBatch::Change& change) {
    switch (change.kind) {
      case MetaBatch::Kind::kPut:
        return batch.Put(Handle(change.family), change.key, change.value);
      case MetaBatch::Kind::kDelete:
        return batch.Delete(Handle(change.family), change.key);
      case MetaBatch::Kind::kDeletePrefix:
        return DeletePrefix(batch, change);
    }
    return rocksdb::Status::InvalidArgument("unknown change");
  }

  // Row by row. A range that RocksDB deletes as one can leave a compaction with nothing to write;
  // when the disk fails just then, RocksDB with its assertions, as Debian builds it, ends the
  // process.
  rocksdb::Status DeletePrefix(rocksdb::WriteBatchWithIndex& batch,
                               const MetaBatch::Change& change) {
    rocksdb::ColumnFamilyHandle* const family = Handle(change.family);
    std::vector<std::string> keys;
    {
      // With what the group has put there before.
      const std::unique_ptr<rocksdb::Iterator> rows(
          batch.NewIteratorWithBase(family, db().NewIterator(rocksdb::ReadOptions(), family)));
      rows->Seek(change.key);
      for (; rows->Valid() && rows->key().starts_with(change.key); rows->Next()) {
        keys.push_back(rows->key().ToString());
      }
      if (!rows->status().ok()) return rows->status();
    }
    for (const std::string& key : keys) {
      if (rocksdb::Status status = batch.Delete(family, key); !status.ok()) return status;
    }
    return rocksdb::Status::OK();
  }

  // The sequence number that all of the table files together reach; none when it did not work out:
  // then the log still has what they lack.
  std::optional<std::uint64_t> FlushAll() {
    if (!attached() || options_.in_memory || !broken_.ok()) return std::nullopt;
    if (latest_sequence() == 0) return std::nullopt;  // stays a store that was never used
    const rocksdb::Status status = TryFlushAll();
    if (!status.ok()) {
      LogWarning("metadata store closed without a flush path={} error=\"{}\"", options_.path,
                 status.ToString());
      return std::nullopt;
    }
    return db().GetLatestSequenceNumber();
  }

  rocksdb::Status TryFlushAll() {
    const rocksdb::FlushOptions flush;
    if (FailPoint("a clean close leaves rows in the log")) return rocksdb::Status::OK();
    if (rocksdb::Status status = db().Flush(flush, Handles()); !status.ok()) return status;
    // The manifest's edits of these flushes all carry the same sequence number. One more change
    // with a higher one comes last, so that a manifest that lost any of them ends before it. It
    // goes into RocksDB's default family, which nothing else uses.
    rocksdb::WriteOptions write;
    write.sync = true;
    const rocksdb::Slice key(kCleanCloseKey.data(), kCleanCloseKey.size());
    if (FailPoint("a clean close tells no last change")) return db().Flush(flush);
    if (rocksdb::Status status = db().Put(write, key, ""); !status.ok()) return status;
    return FailPoint("a clean close leaves its last change in the log") ? rocksdb::Status::OK()
                                                                        : db().Flush(flush);
  }

  const MetaOptions options_;
  RocksDbSetup setup_;
  // Of the metadata thread.
  absl::Status broken_;  // why nothing is committed until the files are opened anew
  std::chrono::steady_clock::time_point failed_time_;  // or of the last attempt to open them
  StorePlace place_;
  std::chrono::steady_clock::time_point look_time_;  // for RocksDB's own files
  bool place_is_lost_ = false;

  std::atomic<std::uint64_t> durable_sequence_ = 0;
  std::atomic<std::int64_t> extent_bytes_min_ = 0;

  MetaQueue queue_;
  Mutex mutex_;
  MetaStats stats_ CAIRN_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetaStore>> MetaStore::Open(MetaOptions options) {
  // Before anything else: opening removes files that the manifest does not name.
  CAIRN_RETURN_IF_ERROR(CheckSequence(options));
  auto store = std::make_unique<RocksDbStore>(std::move(options));
  CAIRN_RETURN_IF_ERROR(store->Start());
  return store;
}

absl::Status MetaStore::CommitAndWait(MetaBatch batch) {
  std::promise<absl::Status> promise;
  CAIRN_RETURN_IF_ERROR(Commit(
      std::move(batch), [&promise](absl::Status status) { promise.set_value(std::move(status)); }));
  return promise.get_future().get();
}

absl::Status CheckStoreId(MetaStore& store, std::string_view store_id,
                          std::string_view extent_path) {
  CAIRN_ASSIGN_OR_RETURN(const std::optional<std::string> stored,
                         store.reader().Get(Family::kConfig, kStoreIdKey));
  if (!stored) {
    if (const std::uint64_t sequence = store.latest_sequence(); sequence > 0) {
      return DataLoss(
          "the metadata of extent file {} is damaged: it has rows up to change {}, but no store "
          "id; nothing was changed: restore both from the same backup, or begin with an empty "
          "store "
          "in another data_dir",
          extent_path, sequence);
    }
    MetaBatch batch;
    batch.Put(Family::kConfig, std::string(kStoreIdKey), std::string(store_id));
    return store.CommitAndWait(std::move(batch));
  }
  if (*stored == store_id) return absl::OkStatus();
  return OtherStore(store_id, *stored, extent_path);
}

}  // namespace cairn::kv
