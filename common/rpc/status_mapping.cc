#include "common/rpc/status_mapping.h"

#include <algorithm>
#include <cstdint>

namespace cairn::rpc {
namespace {

// Bytes of the UTF-8 character that `lead` starts; 0 if none starts so.
std::size_t CharacterBytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// Overlong three- and four-byte forms and surrogates, which protobuf refuses too.
bool IsForbiddenPair(unsigned char lead, unsigned char second) {
  return (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) ||
         (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second >= 0x90);
}

bool IsValidUtf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t size = CharacterBytes(lead);
    if (size == 0 || i + size > text.size()) return false;
    for (std::size_t k = 1; k < size; ++k) {
      if (!IsContinuation(text[i + k])) return false;
    }
    if (size > 2 && IsForbiddenPair(lead, static_cast<unsigned char>(text[i + 1]))) return false;
    i += size;
  }
  return true;
}

}  // namespace

std::string CleanMessage(std::string_view message) {
  std::size_t size = std::min(message.size(), kStatusMessageBytesMax);
  // Not in the middle of a character.
  while (size > 0 && size < message.size() && IsContinuation(message[size])) --size;
  std::string out(message.substr(0, size));
  if (IsValidUtf8(out)) return out;
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  return out;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), CleanMessage(ToStd(status.message()))};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return {FailureCodeFromNumber(status.error_code()), status.error_message()};
}

absl::StatusCode FailureCodeFromNumber(int number) {
  constexpr int kFirst = static_cast<int>(absl::StatusCode::kCancelled);
  constexpr int kLast = static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (number < kFirst || number > kLast) return absl::StatusCode::kUnknown;
  return static_cast<absl::StatusCode>(number);
}

}  // namespace cairn::rpc
