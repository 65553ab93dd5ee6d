// One file that forgets what was not synced. A program that links this has its own pwrite(),
// ftruncate(), fallocate(), fsync() and fdatasync(), which do what libc's do and remember, for that
// file, what a power cut could undo.
//
// Fault model, from one seed:
// - DieAfter(n): the n calls that come next are done; those behind them fail with EIO and do
//   nothing.
// - PowerCut(): each 512-byte sector that was written since the last sync has its newest bytes or
//   those of that sync, and the file its newest length or the one of that sync, each by itself.
//
// Threading:  one VolatileFile at a time; its file is changed by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace cairn::test {

class VolatileFile {
 public:
  // The file exists, and what it holds is durable.
  VolatileFile(std::string path, std::uint64_t seed);
  ~VolatileFile();
  VolatileFile(const VolatileFile&) = delete;
  VolatileFile& operator=(const VolatileFile&) = delete;

  void DieAfter(int calls) { calls_left_ = calls; }
  bool died() const { return calls_left_ == 0; }
  // The file must be closed. Behind it calls work again.
  void PowerCut();

  // For the calls: whether `fd` is this file, and what is about to be done to it. False: it fails.
  bool IsOf(int fd) const;
  bool BeforeWrite(std::int64_t offset, std::int64_t size);
  bool BeforeResize(std::int64_t length);
  bool BeforeSync();
  void Synced();

 private:
  bool TakeCall();
  void Remember(std::int64_t begin, std::int64_t end);

  const std::string path_;
  std::mt19937_64 random_;
  int calls_left_ = -1;  // until it dies; -1: never
  std::int64_t durable_length_ = 0;
  std::map<std::int64_t, std::vector<char>> durable_sectors_;  // of those that were changed
};

}  // namespace cairn::test
