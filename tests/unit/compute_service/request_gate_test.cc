#include "compute-node/service/request_gate.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cairn/compute/v1/inference.pb.h"

namespace cairn::compute {
namespace {

// A call whose request has so many bytes and comes when it is let through.
class FakeStream {
 public:
  explicit FakeStream(std::size_t text_bytes) : text_bytes_(text_bytes) {}

  bool Read(v1::TokenizeRequest* request) {
    reading = true;
    while (held) std::this_thread::yield();
    request->set_text(std::string(text_bytes_, 'x'));
    return !broken;
  }

  std::atomic<bool> held{false};
  std::atomic<bool> reading{false};
  bool broken = false;

 private:
  const std::size_t text_bytes_;
};

struct Call {
  explicit Call(std::size_t text_bytes) : stream(text_bytes) {}

  FakeStream stream;
  v1::TokenizeRequest request;
  MemoryClaim claim;
};

absl::Status Read(RequestGate& gate, Call& call) {
  return gate.Read(call.stream, call.request, call.claim);
}

TEST(RequestGateTest, ARequestThatWasReadHasItsMemory) {
  MemoryBudget memory(64 << 20);
  RequestGate gate(memory);
  Call small(100);
  EXPECT_TRUE(Read(gate, small).ok());
  EXPECT_EQ(small.request.text().size(), 100U);
  EXPECT_EQ(memory.claimed_bytes(), 0);
  {
    Call large(1 << 20);
    EXPECT_TRUE(Read(gate, large).ok());
    EXPECT_GE(memory.claimed_bytes(), RequestMemoryBytes(1 << 20));
  }
  EXPECT_EQ(memory.claimed_bytes(), 0);
}

TEST(RequestGateTest, WhatHasNoRoomIsDropped) {
  MemoryBudget memory(8 << 20);
  RequestGate gate(memory);
  Call huge(1 << 20);
  EXPECT_EQ(Read(gate, huge).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(huge.request.text().empty());
  MemoryClaim others(memory);
  ASSERT_TRUE(others.Resize(memory.claim_bytes_max()).ok());
  Call large(1 << 19);
  EXPECT_EQ(Read(gate, large).code(), absl::StatusCode::kUnavailable);
  others.Release();
  Call again(1 << 19);
  EXPECT_TRUE(Read(gate, again).ok());
}

TEST(RequestGateTest, ACallWithoutARequestIsAnError) {
  MemoryBudget memory(8 << 20);
  RequestGate gate(memory);
  Call call(100);
  call.stream.broken = true;
  EXPECT_EQ(Read(gate, call).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestGateTest, FewReadAtOnceAndTheOthersFollow) {
  MemoryBudget memory(64 << 20);
  RequestGate gate(memory);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::thread> threads;
  const auto start = [&] {
    calls.push_back(std::make_unique<Call>(100));
    calls.back()->stream.held = true;
    threads.emplace_back(
        [&gate, call = calls.back().get()] { EXPECT_TRUE(Read(gate, *call).ok()); });
  };
  for (int i = 0; i < kRequestReadersMax; ++i) {
    start();
    while (!calls.back()->stream.reading) std::this_thread::yield();
  }
  start();
  EXPECT_FALSE(calls.back()->stream.reading);
  calls.front()->stream.held = false;
  while (!calls.back()->stream.reading) std::this_thread::yield();
  for (const auto& call : calls) call->stream.held = false;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cairn::compute
