#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include "common/base/status.h"
#include "common/log/log.h"
#include "kv-node/meta/rocksdb_options.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kReadaheadBytes = std::size_t{64} << 10;
constexpr std::size_t kFileBufferBytes = std::size_t{64} << 10;
// Ten families: the default arena block would cost more than their rows.
constexpr std::size_t kArenaBlockBytes = std::size_t{16} << 10;
// Merging all is put off until what is newer than the oldest run is as large as that.
constexpr unsigned kSpaceAmplificationPercent = 100;
// Open table readers cost some KiB each.
constexpr int kOpenFileCountMax = 64;

// InfoLog takes what RocksDB has to say into the program's log. Its own log would be one more file
// on the disk of the store, and where librocksdb is built with its assertions, as Debian's is, the
// second line behind one that found the disk full ends the process.
class InfoLog final : public rocksdb::Logger {
 public:
  InfoLog() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using rocksdb::Logger::Logv;
  // What RocksDB says without a level: its options and the like.
  void Logv(const char* format, va_list values) override {
    Logv(rocksdb::InfoLogLevel::INFO_LEVEL, format, values);
  }
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list values) override {
    if (level < GetInfoLogLevel()) return;
    char line[1024];
    std::vsnprintf(line, sizeof(line), format, values);
    std::string text = line;
    for (char& letter : text) {
      if (letter == '\n' || letter == '"') letter = ' ';
    }
    LogWarning("metadata store says \"{}\"", text);
  }
};

// Some file systems refuse O_DIRECT, and RocksDB then refuses to open.
bool AcceptsDirectIo(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  const std::string path = directory + "/direct-io-probe";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  const bool refused = fd < 0 && errno == EINVAL;
  if (fd >= 0) close(fd);
  unlink(path.c_str());
  if (refused) {
    LogWarning("metadata store uses the page cache path={} reason=\"O_DIRECT is refused\"",
               directory);
  }
  return !refused;
}

void SetMemoryLimits(const MetaOptions& options, rocksdb::DBOptions& db) {
  db.max_background_jobs = 2;
  db.max_file_opening_threads = 1;
  db.max_open_files = kOpenFileCountMax;
  db.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(
      static_cast<std::size_t>(options.memtable_bytes));
  // A family that is seldom written would otherwise keep every log since its last row.
  db.max_total_wal_size = static_cast<std::uint64_t>(4 * options.memtable_bytes);
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.skip_stats_update_on_db_open = true;
}

rocksdb::ColumnFamilyOptions FamilyOptions(const MetaOptions& options,
                                           std::shared_ptr<rocksdb::Cache> block_cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(block_cache);
  table.cache_index_and_filter_blocks = true;
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions family;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  family.write_buffer_size = static_cast<std::size_t>(options.memtable_bytes / 2);
  family.arena_block_size = kArenaBlockBytes;
  family.max_write_buffer_number = 2;
  family.compression = rocksdb::kNoCompression;  // rows are packed already
  // Each close leaves a table of a few rows for every family, and rows of new conversations have
  // keys behind all others: a compaction by levels moves such tables down without merging them, and
  // a store that is opened daily gets thousands, which every scan opens one by one.
  family.compaction_style = rocksdb::kCompactionStyleUniversal;
  family.compaction_options_universal.max_size_amplification_percent = kSpaceAmplificationPercent;
  return family;
}

}  // namespace

RocksDbSetup MakeRocksDbSetup(const MetaOptions& options, MetaAccess access) {
  RocksDbSetup setup;
  if (options.in_memory) {
    setup.env.reset(rocksdb::NewMemEnv(rocksdb::Env::Default()));
    // RocksDB looks into it before it makes it, and warns if it is not there.
    setup.env->CreateDirIfMissing(options.path).PermitUncheckedError();
  } else if (options.wrap_file_system) {
    setup.env = rocksdb::NewCompositeEnv(
        options.wrap_file_system(rocksdb::Env::Default()->GetFileSystem()));
  }
  rocksdb::DBOptions& db = setup.options;
  if (setup.env != nullptr) db.env = setup.env.get();
  db.create_if_missing = access == MetaAccess::kUse;
  db.create_missing_column_families = access == MetaAccess::kUse;
  db.paranoid_checks = true;
  db.info_log = std::make_shared<InfoLog>();
  db.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  // After a power cut the end of the log holds unsynced batches, torn in any way. Nobody was told
  // that they are durable, so they must not keep the store from opening, as they would with
  // kAbsoluteConsistency, and with kTolerateCorruptedTailRecords when a record has its length but
  // not its bytes. A log that is missing or shorter than what was synced is found by comparing it
  // with the manifest.
  db.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  db.track_and_verify_wals_in_manifest = true;
  SetMemoryLimits(options, db);
  setup.watch = std::make_shared<RocksDbWatch>(db.write_buffer_manager);
  db.listeners.push_back(setup.watch);
  db.max_bgerror_resume_count = 0;  // see RocksDbWatch
  if (access == MetaAccess::kUse && !options.in_memory && AcceptsDirectIo(options.path)) {
    db.use_direct_reads = true;
    db.use_direct_io_for_flush_and_compaction = true;
    db.compaction_readahead_size = kReadaheadBytes;
    db.writable_file_max_buffer_size = kFileBufferBytes;
  }
  setup.block_cache = rocksdb::NewLRUCache(static_cast<std::size_t>(options.block_cache_bytes), 0);
  const rocksdb::ColumnFamilyOptions family = FamilyOptions(options, setup.block_cache);
  for (int i = 0; i < kFamilyCount; ++i) {
    setup.families.emplace_back(std::string(FamilyName(static_cast<Family>(i))), family);
  }
  setup.families.emplace_back(rocksdb::kDefaultColumnFamilyName, family);
  return setup;
}

int LackOfDescriptors(const rocksdb::Status& status) {
  if (!status.IsIOError()) return 0;
  // RocksDB keeps the error's text and not its number.
  const std::string text = status.ToString();
  for (const int error_number : {EMFILE, ENFILE}) {
    if (text.find(ErrnoText(error_number)) != std::string::npos) return error_number;
  }
  return 0;
}

absl::Status FromRocksDb(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = status.ToString();
  if (status.IsNotFound()) return NotFound("{}: {}", what, text);
  if (status.IsNoSpace()) return ResourceExhausted("{}: the disk is full: {}", what, text);
  if (const int lack = LackOfDescriptors(status); lack != 0) {
    return ResourceExhausted("{}: {}{}", what, text, ErrnoCure(lack));
  }
  if (status.IsIOError() && (text.find("lock file") != std::string::npos ||
                             text.find("lock hold") != std::string::npos)) {
    return Unavailable("{}: another process uses it: {}", what, text);
  }
  if (status.IsCorruption()) return DataLoss("{}: {}", what, text);
  // At opening: the files hold families or features that this program does not know.
  if (status.IsInvalidArgument() || status.IsNotSupported()) {
    return FailedPrecondition("{}: {}", what, text);
  }
  return Internal("{}: {}", what, text);
}

}  // namespace cairn::kv
