#include "common/rpc/grpc_runtime.h"

#include <cstdlib>
#include <mutex>

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include "common/base/check.h"
#include "common/log/log.h"

namespace cairn::rpc {
namespace {

// gRPC reports errors to us as statuses too; its own lines are for those who look into gRPC.
void Log(gpr_log_func_args* line) {
  LogDebug("grpc {}:{} {}", line->file, line->line, line->message);
}

}  // namespace

void KeepGrpcRuntime() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(&Log);
    grpc_init();
  });
}

void ChoosePolling() {
  constexpr int kOverwrite = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): called before threads start.
  CAIRN_CHECK(::setenv("GRPC_POLL_STRATEGY", "poll", kOverwrite) == 0);
}

}  // namespace cairn::rpc
