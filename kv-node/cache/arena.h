// Arena is the memory of the KV node's cache that clients may map: granules of shared memory
// (memfds), sealed so that whoever gets a descriptor can read and nothing else. Its pages are given
// out in blocks; a granule is made when a block needs it and goes back to the system whole.
//
// Units:      pages of kPageBytes.
// Threading:  the engine thread; granules() is for any thread.
// Ownership:  whoever holds a granule keeps its memory mapped; the arena forgetting it does not
//             unmap it.
// Limits:     bytes_max, and kGranuleCountMax: what one message of the handshake can carry.
// Errors:     no error when the system refuses memory: there is no block, as when the arena is
//             full; it is logged once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/arena_layout.h"
#include "kv-node/layout/free_map.h"

namespace cairn::kv {

static_assert(kArenaPageBytes == kPageBytes);

// Linux passes 253 descriptors in one message (SCM_MAX_FD).
inline constexpr std::int64_t kGranuleCountMax = 250;
inline constexpr std::int64_t kGranuleBytesMax = std::int64_t{4} << 20;
inline constexpr std::int64_t kGranuleBytesMin = std::int64_t{256} << 10;

class ArenaGranule {
 public:
  // A memfd with its mapping, sealed against writing by others, growing and shrinking.
  static absl::StatusOr<std::shared_ptr<ArenaGranule>> Create(std::int32_t id,
                                                              std::int64_t size_bytes);
  ~ArenaGranule();
  ArenaGranule(const ArenaGranule&) = delete;
  ArenaGranule& operator=(const ArenaGranule&) = delete;

  std::int32_t id() const { return id_; }  // never reused while the daemon runs
  int fd() const { return fd_; }
  std::int64_t size_bytes() const { return size_bytes_; }
  std::byte* data() const { return data_; }
  std::span<std::byte> memory() const { return {data_, static_cast<std::size_t>(size_bytes_)}; }

 private:
  ArenaGranule(std::int32_t id, std::int64_t size_bytes, int fd) noexcept
      : id_(id), fd_(fd), size_bytes_(size_bytes) {}

  const std::int32_t id_;
  const int fd_;
  const std::int64_t size_bytes_;
  std::byte* data_ = nullptr;
};

// Consecutive pages of a granule.
struct ArenaBlock {
  std::shared_ptr<const ArenaGranule> granule;
  std::int64_t first_page = 0;
  std::int64_t page_count = 0;

  std::int64_t offset_bytes() const { return first_page * kPageBytes; }
  // Of this use of the pages, for those who read them from another process.
  void SetGeneration(std::int64_t generation) const {
    SetArenaGeneration(granule->data(), first_page, page_count, generation);
  }
  std::span<std::byte> bytes() const {
    return {granule->data() + offset_bytes(), static_cast<std::size_t>(page_count * kPageBytes)};
  }
};

// Told of each granule's memory: when it comes, and before it goes.
struct GranuleWatch {
  std::function<void(std::span<std::byte>)> comes;
  std::function<void(std::span<std::byte>)> goes;
};

class Arena {
 public:
  // The granules' size follows from `bytes_max`: an eighth of it, within the bounds above. `watch`
  // does not hear of the arena's own end.
  explicit Arena(std::int64_t bytes_max, GranuleWatch watch = {});

  // nullopt when there is no room.
  std::optional<ArenaBlock> Allocate(std::int64_t page_count);
  // Tries only where `freed` lay: what a caller that makes room block by block wants.
  std::optional<ArenaBlock> AllocateNear(const ArenaBlock& freed, std::int64_t page_count);
  void Free(const ArenaBlock& block);
  // Gives granules without blocks back to the system.
  void Trim();

  std::int64_t bytes_max() const { return granule_count_max_ * granule_bytes_; }
  std::int64_t granule_bytes() const { return granule_bytes_; }
  // Of the largest block that can ever have room.
  std::int64_t block_pages_max() const {
    return granule_bytes_ / kPageBytes - ArenaTablePages(granule_bytes_);
  }
  // Of pages that no block has, in granules that exist or may be made.
  std::int64_t free_bytes() const;
  // Of granules that exist; their pages count as memory once they were touched.
  std::int64_t size_bytes() const;
  std::vector<std::shared_ptr<const ArenaGranule>> granules() const;

 private:
  struct Pages {
    std::shared_ptr<const ArenaGranule> granule;
    FreeMap map;
  };
  static std::optional<ArenaBlock> AllocateIn(Pages& pages, std::int64_t page_count);
  bool Grow();

  const std::int64_t granule_bytes_;
  const std::int64_t granule_count_max_;
  const GranuleWatch watch_;
  std::int32_t last_id_ = 0;
  bool refused_ = false;                 // the system has no memory for another granule
  std::map<std::int32_t, Pages> pages_;  // by granule id
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const ArenaGranule>> granules_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv
