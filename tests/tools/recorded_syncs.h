// What this program syncs through libc, RocksDB's files included: a program that links this has its
// own fsync() and fdatasync(), which tell and then do what libc's do.
//
// Threading:  one RecordedSyncs at a time; its callback runs on the thread that syncs, before the
//             kernel is asked.
#pragma once

#include <functional>
#include <string>

namespace cairn::test {

class RecordedSyncs {
 public:
  // `path` is what the kernel calls the file or directory now.
  using OnSync = std::function<void(const std::string& path)>;
  explicit RecordedSyncs(OnSync on_sync);
  ~RecordedSyncs();
  RecordedSyncs(const RecordedSyncs&) = delete;
  RecordedSyncs& operator=(const RecordedSyncs&) = delete;
};

}  // namespace cairn::test
