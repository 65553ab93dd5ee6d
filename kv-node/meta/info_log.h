// InfoLog takes what RocksDB has to say into the program's log. Its own log would be one more file
// on the disk of the store, and where librocksdb is built with its assertions, as Debian's is, the
// second line behind one that found the disk full ends the process.
//
// Threading: any thread.
#pragma once

#include <rocksdb/env.h>

namespace cairn::kv {

class InfoLog final : public rocksdb::Logger {
 public:
  InfoLog() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list values) override;
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list values) override;
};

}  // namespace cairn::kv
