#include "kv-node/meta/sequence_check.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include <rocksdb/db.h>

#include "kv-node/meta/rocksdb_options.h"

namespace cairn::kv {
namespace {

constexpr char kAdvice[] =
    "nothing was changed: check that all of the directory is there (is it mounted?), restore both "
    "from the same backup, or begin with an empty store in another data_dir";

// RocksDB's file that names the manifest. Without it RocksDB would begin an empty store.
constexpr char kCurrentFile[] = "CURRENT";

absl::Status Damaged(const MetaOptions& options, const rocksdb::Status& status) {
  return DataLoss("the metadata in {} of the extent file {} is damaged ({}); {}", options.path,
                  options.extent_path, status.ToString(), kAdvice);
}

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// A store without an id ends before any sequence number that was told, or is damaged: the other
// checks say so.
absl::Status CheckId(const MetaOptions& options, rocksdb::DB& db,
                     const std::vector<rocksdb::ColumnFamilyHandle*>& handles) {
  std::string stored;
  const rocksdb::Status status =
      db.Get(rocksdb::ReadOptions(), handles[static_cast<std::size_t>(Family::kConfig)],
             rocksdb::Slice(kStoreIdKey.data(), kStoreIdKey.size()), &stored);
  if (status.IsCorruption()) return Damaged(options, status);
  if (!status.ok() || options.store_id.empty() || stored == options.store_id) {
    return absl::OkStatus();
  }
  return OtherStore(options.store_id, stored, options.extent_path);
}

// What a manifest that lost its end can lack.
bool LacksFamily(const rocksdb::Status& status) {
  return status.IsInvalidArgument() &&
         status.ToString().find("olumn family not found") != std::string::npos;
}

absl::StatusOr<std::uint64_t> ReadSequence(const MetaOptions& options) {
  const RocksDbSetup setup = MakeRocksDbSetup(options, MetaAccess::kLook);
  rocksdb::DB* opened = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  const rocksdb::Status status =
      rocksdb::DB::OpenForReadOnly(setup.options, options.path, setup.families, &handles, &opened);
  if (status.IsCorruption() || status.IsPathNotFound() || LacksFamily(status)) {
    return Damaged(options, status);
  }
  CAIRN_RETURN_IF_ERROR(
      FromRocksDb(status, fmt::format("look into the metadata store {}", options.path)));
  const std::unique_ptr<rocksdb::DB> db(opened);
  const std::uint64_t sequence = db->GetLatestSequenceNumber();
  const absl::Status id = CheckId(options, *db, handles);
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    // Fails only for a handle of another database.
    db->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
  if (!id.ok()) return id;
  return sequence;
}

}  // namespace

absl::Status OtherStore(std::string_view store_id, std::string_view metadata_store_id,
                        std::string_view extent_path) {
  return FailedPrecondition(
      "extent file {} belongs to another store: its store id is {}, the metadata's is {}; put the "
      "right file back, or begin with an empty store in another data_dir",
      extent_path, Hex(store_id), Hex(metadata_store_id));
}

// Only what is known not to be there is missing: a directory that may not be looked into may have
// all of it.
absl::StatusOr<bool> HasCurrentFile(const std::string& directory) {
  const std::string path = directory + "/" + kCurrentFile;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return false;
  if (status.type() != std::filesystem::file_type::none) return true;
  return ErrnoStatus(error.value(), fmt::format("look for the metadata's file {}", path));
}

absl::Status CheckSequence(const MetaOptions& options) {
  if (options.in_memory || options.sequence_min == 0) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const bool there, HasCurrentFile(options.path));
  if (!there) {
    return DataLoss(
        "the metadata in {} is missing, and the extent file {} was used with it up to "
        "change {}; {}",
        options.path, options.extent_path, options.sequence_min, kAdvice);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::uint64_t sequence, ReadSequence(options));
  if (sequence >= options.sequence_min) return absl::OkStatus();
  return DataLoss(
      "the metadata in {} is older than the extent file {}: it ends with change {}, the extent "
      "file was used with it up to change {}; {}",
      options.path, options.extent_path, sequence, options.sequence_min, kAdvice);
}

}  // namespace cairn::kv
