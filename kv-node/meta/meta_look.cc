#include "kv-node/meta/meta_look.h"

#include <utility>
#include <vector>

#include "kv-node/meta/rocksdb_options.h"
#include "kv-node/meta/rocksdb_reader.h"
#include "kv-node/meta/sequence_check.h"

namespace cairn::kv {

class MetaLook::Impl final : public RocksDbReader {
 public:
  explicit Impl(const MetaOptions& options)
      : setup_(MakeRocksDbSetup(options, MetaAccess::kLook)) {}
  ~Impl() override { Close(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Start(const std::string& path) {
    rocksdb::DB* db = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    CAIRN_RETURN_IF_ERROR(FromRocksDb(
        rocksdb::DB::OpenForReadOnly(setup_.options, path, setup_.families, &handles, &db),
        fmt::format("read the metadata store {}", path)));
    Attach(db, handles);
    return absl::OkStatus();
  }

 private:
  RocksDbSetup setup_;
};

MetaLook::MetaLook(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetaLook::~MetaLook() = default;

absl::StatusOr<std::unique_ptr<MetaLook>> MetaLook::Open(const MetaOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckSequence(options));
  auto impl = std::make_unique<Impl>(options);
  CAIRN_RETURN_IF_ERROR(impl->Start(options.path));
  return std::unique_ptr<MetaLook>(new MetaLook(std::move(impl)));
}

absl::StatusOr<std::optional<std::string>> MetaLook::Get(Family family, std::string_view key) {
  return impl_->Get(family, key);
}

absl::Status MetaLook::ScanRange(Family family, std::string_view first, std::string_view end,
                                 const Visit& visit) {
  return impl_->ScanRange(family, first, end, visit);
}

std::uint64_t MetaLook::latest_sequence() const { return impl_->db().GetLatestSequenceNumber(); }

}  // namespace cairn::kv
