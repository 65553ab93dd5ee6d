// What the device tests share: pages with recognisable bytes, and waiting for all requests.
#pragma once

#include <chrono>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "common/io/aligned_buffer.h"
#include "kv-node/device/device.h"

namespace cairn::kv {

inline constexpr std::int64_t kPage = kIoAlignmentBytes;

// Runs callbacks until none is left. A device that never completes fails the test instead of
// hanging it.
inline void Drain(Device& device) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (device.in_flight_count() > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "requests never completed";
    device.Poll(std::chrono::milliseconds(100));
  }
}

inline AlignedBuffer Pattern(std::int64_t size_bytes, std::uint64_t seed) {
  AlignedBuffer buffer(size_bytes);
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < size_bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(buffer.data() + i, &word, sizeof word);
  }
  return buffer;
}

inline bool SameBytes(const AlignedBuffer& a, const AlignedBuffer& b) {
  return a.size_bytes() == b.size_bytes() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size_bytes())) == 0;
}

// Submits one request, waits for all, and returns its status.
inline absl::Status WriteNow(Device& device, std::int64_t offset, const AlignedBuffer& data) {
  absl::Status result = absl::UnknownError("the callback did not run");
  device.SubmitWrite(DeviceOffset(offset), data.span(), [&](const absl::Status& s) { result = s; });
  Drain(device);
  return result;
}

inline absl::Status ReadNow(Device& device, std::int64_t offset, AlignedBuffer& out) {
  absl::Status result = absl::UnknownError("the callback did not run");
  device.SubmitRead(DeviceOffset(offset), out.span(), [&](const absl::Status& s) { result = s; });
  Drain(device);
  return result;
}

inline absl::Status FlushNow(Device& device) {
  absl::Status result = absl::UnknownError("the callback did not run");
  device.SubmitFlush([&](const absl::Status& s) { result = s; });
  Drain(device);
  return result;
}

}  // namespace cairn::kv
