// MetaLook reads the metadata of a store that no process has open for writing, and changes no byte
// of it: for tools that look at a stopped store.
//
// Threading:  read from any thread.
// Memory:     the rows of the log, which a running store keeps below four times its memtables, and
//             the block cache.
// Errors:     NOT_FOUND no metadata there; DATA_LOSS damaged, or ending before
//             options.sequence_min; FAILED_PRECONDITION of another store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "kv-node/meta/meta_store.h"

namespace cairn::kv {

class MetaLook final : public MetaReader {
 public:
  static absl::StatusOr<std::unique_ptr<MetaLook>> Open(const MetaOptions& options);
  ~MetaLook() override;
  MetaLook(const MetaLook&) = delete;
  MetaLook& operator=(const MetaLook&) = delete;

  absl::StatusOr<std::optional<std::string>> Get(Family family, std::string_view key) override;
  absl::Status ScanRange(Family family, std::string_view first, std::string_view end,
                         const Visit& visit) override;
  std::uint64_t latest_sequence() const;

 private:
  class Impl;
  explicit MetaLook(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::kv
