// The check of `cairn-kv-util verify`: the rules hold whenever rows were committed.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/status.h"
#include "tests/sim/sim_node.h"

namespace cairn::sim {

// Of the disk's pages: as they are read, or as they are when no write since the last flush arrives.
enum class SimPages { kVisible, kDurable };

class SimStoreCheck {
 public:
  explicit SimStoreCheck(SimStore& store);
  ~SimStoreCheck();
  SimStoreCheck(const SimStoreCheck&) = delete;
  SimStoreCheck& operator=(const SimStoreCheck&) = delete;

  // Not OK: the first finding. The store may be in use. Bits that flip as they are read do not
  // count.
  absl::Status Check(SimPages pages);

 private:
  void Mirror(SimPages pages);

  SimStore& store_;
  const int fd_;                                  // a file with the disk's pages
  std::vector<std::vector<std::byte>> mirrored_;  // by page; empty: as the file began
};

}  // namespace cairn::sim
