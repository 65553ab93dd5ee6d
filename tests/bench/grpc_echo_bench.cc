// Measures what a message and its answer cost over a gRPC stream on a Unix socket when nothing is
// done with them: the least that a fetch can take on this machine. The server is as the KV node's,
// the client is one thread. Prints one JSON object; kv_fetch.py puts it beside the fetches.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "common/base/check.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRequestBytes = 200;
constexpr std::size_t kReplyBytes = 2000;  // as the answer to a fetch of 64 clusters

grpc::ByteBuffer BytesOf(std::size_t size) {
  const grpc::Slice slice(std::string(size, 'x'));
  return {&slice, 1};
}

class EchoStream : public grpc::ServerGenericBidiReactor {
 public:
  EchoStream() { StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    reply_ = BytesOf(kReplyBytes);
    StartWrite(&reply_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
};

class EchoService : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* /*context*/) override {
    return new EchoStream;
  }
};

// In a process of its own, which ends with its parent.
void Serve(const std::string& address) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  EchoService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  CAIRN_CHECK(server != nullptr);
  server->Wait();
}

void AwaitTag(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  CAIRN_CHECK(queue.Next(&tag, &ok) && ok);
}

std::vector<double> Measure(const std::string& address, double seconds) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/echo/Echo", &queue);
  call->StartCall(nullptr);
  AwaitTag(queue);
  const grpc::ByteBuffer request = BytesOf(kRequestBytes);
  std::vector<double> latencies_us;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const Clock::time_point begin = Clock::now();
    grpc::ByteBuffer reply;
    call->Read(&reply, nullptr);
    call->Write(request, nullptr);
    AwaitTag(queue);  // of both, in any order
    AwaitTag(queue);
    latencies_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  context.TryCancel();
  queue.Shutdown();
  void* tag = nullptr;
  for (bool ok = false; queue.Next(&tag, &ok);) {
  }
  std::sort(latencies_us.begin(), latencies_us.end());
  return latencies_us;
}

void Run(const std::string& socket_path, double seconds) {
  const std::string address = "unix:" + socket_path;
  const pid_t server = ::fork();  // before gRPC has threads
  CAIRN_CHECK(server >= 0);
  if (server == 0) Serve(address);
  const std::vector<double> latencies_us = Measure(address, seconds);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  CAIRN_CHECK(!latencies_us.empty());
  std::cout << fmt::format("{{\"case\": \"bare stream\", \"p50_us\": {:.1f}, \"p99_us\": {:.1f}}}",
                           latencies_us[latencies_us.size() / 2],
                           latencies_us[latencies_us.size() * 99 / 100])
            << std::endl;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  try {
    CLI::App app("Measure a bare gRPC stream on a Unix socket; prints one JSON object.");
    std::string socket_path;
    double seconds = 2;
    app.add_option("--socket", socket_path, "Where to listen; must not exist")->required();
    app.add_option("--seconds", seconds, "Time of the measurement");
    CLI11_PARSE(app, argc, argv);
    cairn::Run(socket_path, seconds);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
