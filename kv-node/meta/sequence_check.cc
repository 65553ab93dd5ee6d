#include "kv-node/meta/sequence_check.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "common/base/random_bytes.h"
#include "kv-node/meta/rocksdb_options.h"
#include "kv-node/meta/rocksdb_reader.h"

namespace cairn::kv {
namespace {

constexpr char kAdvice[] =
    "nothing was changed: check that all of the directory is there (is it mounted?), restore both "
    "from the same backup, or begin with an empty store in another data_dir";

// RocksDB's file that names the manifest. Without it RocksDB would begin an empty store.
constexpr char kCurrentFile[] = "CURRENT";

// Opens the database for reading only.
class Look final : public RocksDbReader {
 public:
  explicit Look(const MetaOptions& options)
      : setup_(MakeRocksDbSetup(options, MetaAccess::kLook)) {}
  ~Look() override { Close(); }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

  rocksdb::Status Open(const std::string& path) {
    rocksdb::DB* db = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::Status status =
        rocksdb::DB::OpenForReadOnly(setup_.options, path, setup_.families, &handles, &db);
    if (status.ok()) Attach(db, handles);
    return status;
  }

 private:
  RocksDbSetup setup_;
};

absl::Status Damaged(const MetaOptions& options, std::string_view how) {
  return DataLoss("the metadata in {} of the extent file {} is damaged ({}); {}", options.path,
                  options.extent_path, how, kAdvice);
}

// A store without an id ends before any sequence number that was told, or is damaged: the other
// checks say so.
absl::Status CheckId(const MetaOptions& options, MetaReader& reader) {
  const absl::StatusOr<std::optional<std::string>> stored =
      reader.Get(Family::kConfig, kStoreIdKey);
  if (absl::IsDataLoss(stored.status())) return Damaged(options, Message(stored.status()));
  if (!stored.ok() || !*stored || options.store_id.empty() || **stored == options.store_id) {
    return absl::OkStatus();
  }
  return OtherStore(options.store_id, **stored, options.extent_path);
}

// What a manifest that lost its end can lack.
bool LacksFamily(const rocksdb::Status& status) {
  return status.IsInvalidArgument() &&
         status.ToString().find("olumn family not found") != std::string::npos;
}

absl::StatusOr<std::uint64_t> ReadSequence(const MetaOptions& options) {
  Look look(options);
  const rocksdb::Status status = look.Open(options.path);
  if (status.IsCorruption() || status.IsPathNotFound() || LacksFamily(status)) {
    return Damaged(options, status.ToString());
  }
  CAIRN_RETURN_IF_ERROR(
      FromRocksDb(status, fmt::format("look into the metadata store {}", options.path)));
  CAIRN_RETURN_IF_ERROR(CheckId(options, look));
  return look.db().GetLatestSequenceNumber();
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

}  // namespace

absl::Status OtherStore(std::string_view store_id, std::string_view metadata_store_id,
                        std::string_view extent_path) {
  return FailedPrecondition(
      "extent file {} belongs to another store: its store id is {}, the metadata's is {}; put the "
      "right file back, or begin with an empty store in another data_dir",
      extent_path, ToHex(store_id), ToHex(metadata_store_id));
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

absl::StatusOr<MetaLook> LookAtMetadata(const MetaOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckSequence(options));
  auto look = std::make_unique<Look>(options);
  CAIRN_RETURN_IF_ERROR(FromRocksDb(look->Open(options.path),
                                    fmt::format("read the metadata store {}", options.path)));
  const std::uint64_t sequence = look->db().GetLatestSequenceNumber();
  return MetaLook{std::move(look), sequence};
}

}  // namespace cairn::kv
