#include "clients/cairn/chat_input.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "clients/cairn/chat_history.h"
#include "clients/cairn/input_bytes.h"
#include "clients/cairn/line_editor.h"
#include "common/command/output.h"

namespace cairn::cli {
namespace {

class PipeInput final : public ChatInput {
 public:
  PipeInput() : input_(STDIN_FILENO, [this] { return !interrupt_->interrupted(); }) {}

  absl::StatusOr<TypedInput> Next(const InterruptCancels& interrupt) override;
  void Remember(const std::string&) override {}
  bool is_terminal() const override { return false; }

 private:
  // Moves what `bytes_` holds of a line to it. Whether that is the line's end.
  bool TakeLine(TypedInput& line);

  const InterruptCancels* interrupt_ = nullptr;
  InputBytes input_;
  std::string bytes_;  // behind the last line
};

bool PipeInput::TakeLine(TypedInput& line) {
  const std::size_t end = bytes_.find('\n');
  const std::size_t size = std::min(end, bytes_.size());
  const auto room = static_cast<std::size_t>(kInputBytesMax - std::ssize(line.text));
  line.text.append(bytes_, 0, std::min(size, room));
  line.size_bytes += static_cast<std::int64_t>(size);
  bytes_.erase(0, end == std::string::npos ? size : size + 1);
  return end != std::string::npos;
}

absl::StatusOr<TypedInput> PipeInput::Next(const InterruptCancels& interrupt) {
  interrupt_ = &interrupt;
  TypedInput line{.kind = TypedInput::Kind::kText, .text = {}};
  while (!TakeLine(line)) {
    switch (input_.Read(bytes_)) {
      case InputBytes::Got::kBytes:
        break;
      case InputBytes::Got::kEnd:
        if (line.size_bytes == 0) line.kind = TypedInput::Kind::kEnd;
        return line;
      case InputBytes::Got::kWaitEnded:
        line.kind = TypedInput::Kind::kInterrupt;
        return line;
      case InputBytes::Got::kError:
        return ErrnoStatus(input_.error(), "read standard input");
    }
  }
  return line;
}

class TerminalInput final : public ChatInput {
 public:
  TerminalInput() : history_(DefaultHistoryPath()) {}

  absl::Status Open();
  absl::StatusOr<TypedInput> Next(const InterruptCancels& interrupt) override {
    return editor_->Read(interrupt);
  }
  void Remember(const std::string& text) override;
  bool is_terminal() const override { return true; }

 private:
  // Once: a history that cannot be kept stops nobody from talking.
  void TellOnce(const absl::Status& status);

  ChatHistory history_;
  std::unique_ptr<LineEditor> editor_;
  bool told_ = false;
};

absl::Status TerminalInput::Open() {
  std::vector<std::string> inputs;
  const absl::StatusOr<std::vector<std::string>> loaded = history_.Load();
  if (loaded.ok()) inputs = *loaded;
  TellOnce(loaded.status());
  CAIRN_ASSIGN_OR_RETURN(editor_, LineEditor::Open(inputs));
  return absl::OkStatus();
}

void TerminalInput::Remember(const std::string& text) {
  editor_->Remember(text);
  TellOnce(history_.Add(text));
}

void TerminalInput::TellOnce(const absl::Status& status) {
  if (status.ok() || std::exchange(told_, true)) return;
  WriteNote(fmt::format("cairn: what you type is not kept for later chats: {}\n", Message(status)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatInput>> ChatInput::Open() {
  if (::isatty(STDIN_FILENO) == 0) return std::make_unique<PipeInput>();
  auto input = std::make_unique<TerminalInput>();
  CAIRN_RETURN_IF_ERROR(input->Open());
  return input;
}

}  // namespace cairn::cli
