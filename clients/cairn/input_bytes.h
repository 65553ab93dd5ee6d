// InputBytes are what comes from a terminal or a pipe, read so that a signal ends the waiting (see
// Wake()).
//
// Threading:  the main thread.
// Blocking:   Read waits for input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cairn::cli {

class InputBytes {
 public:
  enum class Got : std::uint8_t {
    kBytes,
    kEnd,
    kWaitEnded,  // on_wake said so
    kError,      // see error()
  };

  // Reads `fd`. `on_wake` is called when Wake() was, and says whether to go on waiting.
  InputBytes(int fd, std::function<bool()> on_wake);

  // Appends what there is, up to kReadBytesMax, to `to`.
  Got Read(std::string& to);
  // The errno.
  int error() const { return error_; }

 private:
  static constexpr std::int64_t kReadBytesMax = 1 << 16;

  const int fd_;
  const std::function<bool()> on_wake_;
  int error_ = 0;
};

}  // namespace cairn::cli
