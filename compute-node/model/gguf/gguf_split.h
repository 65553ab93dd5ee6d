// Models that were split into several GGUF files, "NAME-00001-of-00003.gguf" and so on: how the
// parts are named, and how they become one GgufFile. Used by gguf.cc only.
//
// The first part holds the metadata and mostly some tensors, the others more tensors. In all of
// them split.no (from 0), split.count and split.tensors.count (of the whole model) say what belongs
// together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "compute-node/model/gguf/gguf.h"

namespace cairn::compute {

inline constexpr std::int64_t kGgufSplitCountMax = 1024;

struct GgufSplitName {
  std::string prefix;       // with the folder
  std::int64_t number = 0;  // from 1
  std::int64_t count = 0;

  std::string Path(std::int64_t of_number) const;
};
// nullopt when `path` does not end as a part's name does.
std::optional<GgufSplitName> ParseGgufSplitName(const std::string& path);

class GgufJoiner {
 public:
  // `opened` is one file. If it is a part of a split model, whichever, the answer is the whole
  // model; else it is `opened`.
  //
  // Errors:     name the file. NOT_FOUND for a missing part; INVALID_ARGUMENT for parts that do not
  //             belong together.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Join(std::unique_ptr<GgufFile> opened);

 private:
  explicit GgufJoiner(const GgufFile& opened) : opened_(opened) {}

  absl::Status ReadSplitKeys();
  absl::Status CheckWhole() const;
  absl::Status CheckPart(const GgufFile& part, std::int64_t index) const;
  static absl::Status CheckMetadata(const GgufFile& first, const GgufFile& part);
  static absl::Status AddTensors(GgufFile& first, const GgufFile& part);
  absl::StatusOr<std::unique_ptr<GgufFile>> OpenAll(const GgufSplitName& name) const;

  const GgufFile& opened_;
  // Of the file that was opened.
  std::int64_t number_ = 0;  // from 0
  std::int64_t count_ = 0;   // 0 and 1: not split
  std::optional<std::uint64_t> tensor_count_;
};

}  // namespace cairn::compute
