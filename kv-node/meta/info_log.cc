#include "kv-node/meta/info_log.h"

#include <cstdarg>
#include <cstdio>
#include <string>

#include "common/log/log.h"

namespace cairn::kv {
namespace {

constexpr std::size_t kLineBytesMax = 1024;

}  // namespace

// What RocksDB says without a level: its options and the like.
void InfoLog::Logv(const char* format, va_list values) {
  Logv(rocksdb::InfoLogLevel::INFO_LEVEL, format, values);
}

void InfoLog::Logv(rocksdb::InfoLogLevel level, const char* format, va_list values) {
  if (level < GetInfoLogLevel()) return;
  char line[kLineBytesMax];
  std::vsnprintf(line, sizeof(line), format, values);
  std::string text = line;
  for (char& letter : text) {
    if (letter == '\n' || letter == '"') letter = ' ';
  }
  LogWarning("metadata store says \"{}\"", text);
}

}  // namespace cairn::kv
