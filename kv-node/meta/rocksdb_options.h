// How RocksDB is set up: small and fixed memory, because it counts in the DRAM budget, and direct
// reads, because the page cache is memory too.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include "kv-node/meta/meta_store.h"
#include "kv-node/meta/rocksdb_watch.h"

namespace cairn::kv {

struct RocksDbSetup {
  rocksdb::DBOptions options;
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  std::unique_ptr<rocksdb::Env> env;  // outlives the database
  std::shared_ptr<rocksdb::Cache> block_cache;
  std::shared_ptr<RocksDbWatch> watch;
};

// kLook neither writes nor makes anything.
enum class MetaAccess : std::uint8_t { kUse, kLook };
RocksDbSetup MakeRocksDbSetup(const MetaOptions& options, MetaAccess access);

// NOT_FOUND, DATA_LOSS (corruption), RESOURCE_EXHAUSTED (no space, no file descriptor),
// UNAVAILABLE (lock held), INTERNAL (a file cannot be read or written now, and others).
absl::Status FromRocksDb(const rocksdb::Status& status, std::string_view what);
// EMFILE or ENFILE if a file could not be opened for want of a descriptor, else 0.
int LackOfDescriptors(const rocksdb::Status& status);

}  // namespace cairn::kv
