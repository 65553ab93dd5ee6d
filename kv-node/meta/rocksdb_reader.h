// RocksDbReader reads the rows of an open database.
//
// Threading:  Get() and ScanRange() from any thread; Attach(), Close() and db() from one. The
//             database may be closed and another one attached meanwhile.
// Blocking:   Close() waits for reads.
// Ownership:  owns the database and its handles.
// Errors:     of reads without a database: UNAVAILABLE.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rocksdb/db.h>

#include "common/base/mutex.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

class RocksDbReader : public MetaReader {
 public:
  // `handles` in the order of the families, the default one last.
  void Attach(rocksdb::DB* db, const std::vector<rocksdb::ColumnFamilyHandle*>& handles);
  void Close();

  absl::StatusOr<std::optional<std::string>> Get(Family family, std::string_view key) override;
  absl::Status ScanRange(Family family, std::string_view first, std::string_view end,
                         const Visit& visit) override;

  // Of rows that Get() and ScanRange() have given: keys and values.
  std::int64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }

  // Keeps the database open. Without one `db` is null.
  class Use {
   public:
    explicit Use(RocksDbReader& reader);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    rocksdb::DB* db() const { return db_; }

   private:
    RocksDbReader& reader_;
    rocksdb::DB* db_ = nullptr;
  };

  bool attached() const { return db_ != nullptr; }
  rocksdb::DB& db() { return *db_; }
  rocksdb::ColumnFamilyHandle* Handle(Family family) {
    return handles_[static_cast<std::size_t>(family)].get();
  }
  std::vector<rocksdb::ColumnFamilyHandle*> Handles() const;

 private:
  using HandlePtr = std::unique_ptr<rocksdb::ColumnFamilyHandle,
                                    std::function<void(rocksdb::ColumnFamilyHandle*)>>;

  std::unique_ptr<rocksdb::DB> db_;
  std::vector<HandlePtr> handles_;  // destroyed first
  Mutex mutex_;
  CondVar unused_;
  int use_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool may_use_ CAIRN_GUARDED_BY(mutex_) = false;
  std::atomic<std::int64_t> read_bytes_{0};
};

}  // namespace cairn::kv
