#include "clients/cpp/request_check.h"

#include "common/base/utf8.h"

namespace cairn {

absl::Status CheckUtf8(std::string_view what, std::string_view text) {
  const std::size_t good = Utf8GoodBytes(text);
  if (good == text.size()) return absl::OkStatus();
  return InvalidArgument(
      "{} is not UTF-8: bad byte 0x{:02x} at offset {}; convert it first, such as with iconv -f "
      "latin1 -t utf8",
      what, static_cast<unsigned char>(text[good]), good);
}

absl::Status CheckPrompt(std::string_view what, std::string_view text) {
  if (std::ssize(text) > kPromptBytesMax) {
    return InvalidArgument(
        "{} has {} bytes: at most {}; give it in parts to the same conversation, or shorten it",
        what, text.size(), kPromptBytesMax);
  }
  return CheckUtf8(what, text);
}

absl::Status CheckTexts(const GenerateOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckPrompt("the prompt", options.prompt));
  std::int64_t message_bytes = 0;
  for (const ChatMessage& message : options.messages) {
    CAIRN_RETURN_IF_ERROR(CheckUtf8("a message's role", message.role));
    CAIRN_RETURN_IF_ERROR(CheckPrompt("a message", message.content));
    message_bytes += std::ssize(message.content);
  }
  if (message_bytes > kPromptBytesMax) {
    return InvalidArgument("the messages have {} bytes: at most {}", message_bytes,
                           kPromptBytesMax);
  }
  CAIRN_RETURN_IF_ERROR(CheckUtf8("the label", options.label));
  CAIRN_RETURN_IF_ERROR(CheckUtf8("the policy", options.policy));
  for (const std::string& text : options.stop) {
    CAIRN_RETURN_IF_ERROR(CheckUtf8("a stop text", text));
  }
  return absl::OkStatus();
}

absl::Status CheckRequestBytes(std::int64_t bytes) {
  if (bytes <= kRequestBytesMax) return absl::OkStatus();
  return InvalidArgument(
      "the request has {} bytes, but cairn-compute-node takes {} at most: shorten the prompt, the "
      "label or the stop texts",
      bytes, kRequestBytesMax);
}

}  // namespace cairn
