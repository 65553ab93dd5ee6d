#include "compute-node/eval/output_file.h"

#include <cerrno>
#include <cstdio>

#include "common/base/check.h"

namespace cairn::eval {

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::remove(part_.c_str());
}

absl::Status OutputFile::Open() {
  file_.reset(std::fopen(part_.c_str(), "wb"));
  if (file_ == nullptr) return ErrnoStatus(errno, fmt::format("open {}", part_));
  return absl::OkStatus();
}

void OutputFile::Write(std::string_view text) {
  CAIRN_CHECK(file_ != nullptr);
  if (!status_.ok() || std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size()) return;
  status_ = ErrnoStatus(errno, fmt::format("write {}", part_));
}

absl::Status OutputFile::Commit() {
  CAIRN_CHECK(file_ != nullptr);
  CAIRN_RETURN_IF_ERROR(status_);
  if (std::fclose(file_.release()) != 0) {
    absl::Status failed = ErrnoStatus(errno, fmt::format("write {}", part_));
    std::remove(part_.c_str());
    return failed;
  }
  if (std::rename(part_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("rename {} to {}", part_, path_));
  }
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, std::string_view text) {
  OutputFile file(path);
  CAIRN_RETURN_IF_ERROR(file.Open());
  file.Write(text);
  return file.Commit();
}

}  // namespace cairn::eval
