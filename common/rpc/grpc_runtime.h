// What all of the process's gRPC servers and channels share.
#pragma once

namespace cairn::rpc {

// Keeps gRPC's runtime alive until the process ends. Without it the last server or channel that
// goes shuts the runtime down and waits for its idle poller, which sleeps up to ten seconds.
//
// Threading:  safe from any thread; only the first call does anything.
void KeepGrpcRuntime();

// Has gRPC's threads wait with poll, unless the environment's GRPC_POLL_STRATEGY names something
// else. By default all of a process's waiting threads share one epoll set: whoever waits takes the
// events of all, wakes those that they are for, and hands the waiting on, a few wake-ups for each
// message. A daemon has tens of connections, for which poll is as good.
//
// Threading:  before other threads are started.
void ChoosePolling();

// How often a client of a daemon asks whether it is still there, and how long it waits for the
// answer.
inline constexpr int kPingIntervalMs = 10000;

}  // namespace cairn::rpc
