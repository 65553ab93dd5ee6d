#include "tests/tools/recorded_syncs.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/mutex.h"

namespace cairn::test {
namespace {

struct Recorder {
  Mutex mutex;
  RecordedSyncs::OnSync on_sync CAIRN_GUARDED_BY(mutex);
};

// Never destroyed: threads may sync until the program ends.
Recorder& TheRecorder() {
  static auto* const recorder = new Recorder;
  return *recorder;
}

int Tell(long call, int fd) {
  {
    Recorder& recorder = TheRecorder();
    MutexLock lock(recorder.mutex);
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    if (recorder.on_sync) recorder.on_sync(path.string());
  }
  return static_cast<int>(syscall(call, fd));
}

}  // namespace

RecordedSyncs::RecordedSyncs(OnSync on_sync) {
  Recorder& recorder = TheRecorder();
  MutexLock lock(recorder.mutex);
  CAIRN_CHECK(recorder.on_sync == nullptr);
  recorder.on_sync = std::move(on_sync);
}

RecordedSyncs::~RecordedSyncs() {
  Recorder& recorder = TheRecorder();
  MutexLock lock(recorder.mutex);
  recorder.on_sync = nullptr;
}

}  // namespace cairn::test

extern "C" int fsync(int fd) { return cairn::test::Tell(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return cairn::test::Tell(SYS_fdatasync, fd); }
