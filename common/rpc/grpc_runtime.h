// Keeps gRPC's runtime alive until the process ends. Without it the last server or channel that
// goes shuts the runtime down and waits for its idle poller, which sleeps up to ten seconds.
// Threading: safe from any thread; only the first call does anything.
#pragma once

namespace cairn::rpc {

void KeepGrpcRuntime();

}  // namespace cairn::rpc
