#include "kv-node/meta/rocksdb_reader.h"

#include <iterator>

#include "kv-node/meta/rocksdb_options.h"

namespace cairn::kv {
namespace {

std::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

absl::Status NotOpen() {
  return Unavailable(
      "the metadata store could not be opened again yet: the log says why; try again later");
}

}  // namespace

void RocksDbReader::Attach(rocksdb::DB* db,
                           const std::vector<rocksdb::ColumnFamilyHandle*>& handles) {
  db_.reset(db);
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    handles_.emplace_back(handle, [db](rocksdb::ColumnFamilyHandle* gone) {
      // Fails only for a handle of another database.
      db->DestroyColumnFamilyHandle(gone).PermitUncheckedError();
    });
  }
  MutexLock lock(mutex_);
  may_use_ = true;
}

RocksDbReader::Use::Use(RocksDbReader& reader) : reader_(reader) {
  MutexLock lock(reader.mutex_);
  if (!reader.may_use_) return;
  ++reader.use_count_;
  db_ = reader.db_.get();
}

RocksDbReader::Use::~Use() {
  if (db_ == nullptr) return;
  MutexLock lock(reader_.mutex_);
  if (--reader_.use_count_ == 0) reader_.unused_.NotifyAll();
}

void RocksDbReader::Close() {
  {
    MutexLock lock(mutex_);
    may_use_ = false;
    while (use_count_ > 0) unused_.Wait(mutex_);
  }
  handles_.clear();
  db_.reset();
}

absl::StatusOr<std::optional<std::string>> RocksDbReader::Get(Family family, std::string_view key) {
  const Use use(*this);
  if (use.db() == nullptr) return NotOpen();
  std::string value;
  const rocksdb::Status status = use.db()->Get(rocksdb::ReadOptions(), Handle(family),
                                               rocksdb::Slice(key.data(), key.size()), &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  CAIRN_RETURN_IF_ERROR(FromRocksDb(status, fmt::format("read a row of {}", FamilyName(family))));
  read_bytes_.fetch_add(std::ssize(key) + std::ssize(value), std::memory_order_relaxed);
  return std::optional(std::move(value));
}

absl::Status RocksDbReader::ScanRange(Family family, std::string_view first, std::string_view end,
                                      const Visit& visit) {
  const Use use(*this);
  if (use.db() == nullptr) return NotOpen();
  rocksdb::ReadOptions read;
  read.fill_cache = false;  // a scan must not push out what single reads need
  const rocksdb::Slice upper(end.data(), end.size());
  if (!end.empty()) read.iterate_upper_bound = &upper;
  const std::unique_ptr<rocksdb::Iterator> rows(use.db()->NewIterator(read, Handle(family)));
  std::int64_t bytes = 0;
  absl::Status visited;
  for (rows->Seek(rocksdb::Slice(first.data(), first.size())); visited.ok() && rows->Valid();
       rows->Next()) {
    bytes += static_cast<std::int64_t>(rows->key().size() + rows->value().size());
    visited = visit(View(rows->key()), View(rows->value()));
  }
  read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  CAIRN_RETURN_IF_ERROR(visited);
  return FromRocksDb(rows->status(), fmt::format("scan {}", FamilyName(family)));
}

std::vector<rocksdb::ColumnFamilyHandle*> RocksDbReader::Handles() const {
  std::vector<rocksdb::ColumnFamilyHandle*> out;
  for (const HandlePtr& handle : handles_) out.push_back(handle.get());
  return out;
}

}  // namespace cairn::kv
