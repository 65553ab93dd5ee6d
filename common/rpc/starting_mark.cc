#include "common/rpc/starting_mark.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <utility>

namespace cairn::rpc {

StartingMark::StartingMark(const std::string& socket_path) : path_(socket_path + kStartingSuffix) {
  UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  // Another one's: that one removes it.
  if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  file_ = std::move(file);
}

StartingMark::~StartingMark() {
  if (file_.valid()) ::unlink(path_.c_str());
}

bool IsStarting(const std::string& socket_path) {
  const std::string path = socket_path + kStartingSuffix;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return file.valid() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace cairn::rpc
