// WrittenTables counts the bytes of the table files that RocksDB makes.
//
// Threading:  RocksDB calls the listener on its own threads; bytes() is for any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include <rocksdb/listener.h>

namespace cairn::kv {

class WrittenTables : public rocksdb::EventListener {
 public:
  std::int64_t bytes() const { return bytes_; }

  // Flushes and compactions alike; a file that could not be finished has a size, too.
  void OnTableFileCreated(const rocksdb::TableFileCreationInfo& info) override {
    bytes_ += static_cast<std::int64_t>(info.file_size);
  }

 private:
  std::atomic<std::int64_t> bytes_ = 0;
};

}  // namespace cairn::kv
