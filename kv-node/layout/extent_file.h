// ExtentFile is the file DIR/extents.cairn that holds all KV pages, opened for the life of a KV
// node: its superblock, its lock, and its descriptor, on which a Device does the I/O.
//
// Threading:  one thread at a time.
// Blocking:   Create() and Grow() write what is new in full; the others read or write two pages.
// Ownership:  owns the descriptor; a device opened on fd() must be destroyed before this.
// Errors:     UNAVAILABLE another process uses the directory; NOT_FOUND no extent file;
//             ALREADY_EXISTS create over one; RESOURCE_EXHAUSTED disk full; DATA_LOSS truncated, or
//             both superblocks damaged; FAILED_PRECONDITION a format that this program does not
//             read, or O_DIRECT demanded and not to be had.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "kv-node/layout/direct_io.h"
#include "kv-node/layout/file_space.h"
#include "kv-node/layout/superblock.h"

namespace cairn::kv {

// Under the store's directory.
inline constexpr char kExtentFileName[] = "extents.cairn";
inline constexpr char kMetaDirectoryName[] = "meta";

struct ExtentFileOptions {
  std::string directory;  // must exist
  // Refuse a file system where O_DIRECT does not bypass the page cache, instead of logging a
  // warning.
  bool require_direct = false;
  // To look at a stopped store: nothing is written, and the lock is shared with others that look.
  bool read_only = false;
  // How long to wait for the lock. The kernel closes the files of a killed process's io_uring some
  // time after the process is gone.
  std::chrono::milliseconds lock_wait = std::chrono::seconds(10);
};

class ExtentFile {
 public:
  // Makes the file under a temporary name and renames it when it is complete and durable.
  static absl::StatusOr<std::unique_ptr<ExtentFile>> Create(const ExtentFileOptions& options,
                                                            const ExtentFileSize& create);
  // A damaged superblock copy is rewritten from the other, with a logged warning, unless
  // options.read_only.
  static absl::StatusOr<std::unique_ptr<ExtentFile>> Open(const ExtentFileOptions& options);
  ~ExtentFile();
  ExtentFile(const ExtentFile&) = delete;
  ExtentFile& operator=(const ExtentFile&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  const Superblock& superblock() const { return superblock_; }
  // Why Open() could not use one of the superblock's copies; OK when both were whole.
  const absl::Status& damaged_copy() const { return damaged_copy_; }
  const StoreId& store_id() const { return superblock_.store_id; }
  std::int64_t page_count() const { return superblock_.page_count; }
  std::int64_t size_bytes() const { return superblock_.page_count * kPageBytes; }
  // True when reads were seen to bypass the page cache.
  bool direct() const { return direct_io_.direct; }
  const std::string& direct_reason() const { return direct_io_.reason; }

  // Remembers in the superblock, durably, how far the metadata went. Never less than before.
  absl::Status RecordMetadataSequence(std::uint64_t sequence);

  // Writes the superblock with the next sequence number over the older copy, durably.
  absl::Status UpdateSuperblock(Superblock superblock);

  // Makes the file longer; nothing in it changes. The superblock says so when all of it is durable,
  // in both copies before this returns: until then the store has its old size, and what a crash or
  // an error of `progress` leaves behind its end is used by the next call, or cut off. After
  // another error it is cut off at once. REQUIRES: more pages than now.
  absl::Status Grow(const ExtentFileSize& size);
  // Makes the file shorter: first what the superblock says, in both copies, then the file.
  // REQUIRES: fewer pages than now; nothing names a page of those that go.
  absl::Status Shrink(std::int64_t page_count);
  // Cuts off what lies behind the store's end, which a resize that did not come to its end has
  // left. That it did not work out costs only space, and is logged.
  void CutBehindEnd();

 private:
  ExtentFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  absl::Status Load(bool read_only);
  absl::Status WriteCopy(const Superblock& superblock);
  absl::Status WriteNextCopy(Superblock superblock);
  absl::Status RecordPageCount(std::int64_t page_count);
  absl::Status CheckDirect(bool require_direct);
  absl::Status FillAndName(const ExtentFileOptions& options, const ExtentFileSize& create,
                           const std::string& temporary);

  const int fd_;
  std::string path_;
  Superblock superblock_;
  absl::Status damaged_copy_;
  DirectIo direct_io_;
};

}  // namespace cairn::kv
