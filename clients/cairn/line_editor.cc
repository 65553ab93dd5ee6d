#include "clients/cairn/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "clients/cairn/interrupts.h"
#include "clients/cairn/terminal_guard.h"
#include "clients/cairn/terminal_keys.h"
#include "common/base/utf8.h"
#include "common/command/input.h"

namespace cairn::cli {
namespace {

constexpr int kRememberedMax = 1000;
// Characters that may come before there are rows for them: of the history, which has short ones.
constexpr std::size_t kRoomMin = std::size_t{1} << 15;
// As much as is sent and a little more, so that what is too long is refused and not cut.
constexpr std::size_t kPasteBytesMax = static_cast<std::size_t>(kInputBytesMax) + 1;

std::wstring ToWide(std::string_view text) {
  std::wstring out;
  while (!text.empty()) {
    const std::size_t size = Utf8CharacterBytes(text);
    const std::uint32_t code_point = size == 0 ? 0xfffd : Utf8CodePoint(text.substr(0, size));
    // The library's texts end with a zero.
    if (code_point != 0) out += static_cast<wchar_t>(code_point);
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

std::string ToUtf8(std::wstring_view text) {
  std::string out;
  for (const wchar_t c : text) AppendUtf8(static_cast<std::uint32_t>(c), out);
  return out;
}

// Emacs keys that the library does not have, and what other terminals send for named keys.
constexpr std::array<std::array<const wchar_t*, 2>, 13> kKeys = {{
    {L"\\e[200~", L"cairn-paste"},
    {L"\\e^M", L"cairn-line-break"},
    {L"\\e^J", L"cairn-line-break"},
    {L"^I", L"cairn-complete"},
    {L"^R", L"em-inc-search-prev"},
    {L"^W", L"ed-delete-prev-word"},
    {L"\\e[3~", L"ed-delete-next-char"},
    {L"\\e[1~", L"ed-move-to-beg"},
    {L"\\e[4~", L"ed-move-to-end"},
    {L"\\e[H", L"ed-move-to-beg"},
    {L"\\e[F", L"ed-move-to-end"},
    {L"\\e[1;5C", L"em-next-word"},
    {L"\\e[1;5D", L"ed-prev-word"},
}};

struct HistoryEnd {
  void operator()(HistoryW* history) const { history_wend(history); }
};
struct EditorEnd {
  void operator()(EditLine* editor) const { el_end(editor); }
};

}  // namespace

struct LineEditor::Impl {
  Impl() : keys(STDIN_FILENO, [this] { return OnWake(); }) {}

  // False where waiting for keys ends.
  bool OnWake();
  // The window has another size.
  void Resize();
  // Lets the library believe in rows for `size` characters and more: of a line that does not fit
  // the window it writes outside its buffers (as of version 3.1-20221030). What fits is shown as
  // before; of what does not, the terminal scrolls the beginning away.
  void MakeRows(std::size_t size);

  // What the library calls.
  static int Next(EditLine* editor, wchar_t* out);
  static unsigned char Paste(EditLine* editor, wint_t key);
  static unsigned char BreakLine(EditLine* editor, wint_t key);
  static unsigned char Complete(EditLine* editor, wint_t key);
  static wchar_t* Prompt(EditLine* editor);

  FileHandle display;
  TerminalGuard guard{STDIN_FILENO};
  TerminalKeys keys;
  std::unique_ptr<HistoryW, HistoryEnd> history;
  std::unique_ptr<EditLine, EditorEnd> editor;  // ends before what it uses
  bool reading = false;                         // the first key was asked for
  std::size_t room = SIZE_MAX;                  // characters for which the library has rows
  std::wstring typed;                           // before what ended the last read
  const InterruptCancels* interrupt = nullptr;  // while something is read
};

namespace {

LineEditor::Impl& Of(EditLine* editor) {
  void* data = nullptr;
  el_wget(editor, EL_CLIENTDATA, &data);
  return *static_cast<LineEditor::Impl*>(data);
}

std::wstring_view LineOf(EditLine* editor) {
  const LineInfoW* line = el_wline(editor);
  return {line->buffer, static_cast<std::size_t>(line->lastchar - line->buffer)};
}

}  // namespace

bool LineEditor::Impl::OnWake() {
  if (guard.TakeResized()) Resize();
  if (guard.TakeResumed()) {
    // The library takes the cursor for one at the start of a line.
    std::fputc('\r', display.get());
    el_wset(editor.get(), EL_REFRESH);
  }
  return !interrupt->interrupted();
}

// The library writes outside its buffers when what is typed does not fit the new window (as of
// version 3.1-20221030): while it learns the size there is nothing.
void LineEditor::Impl::Resize() {
  EditLine* line_editor = editor.get();
  const std::wstring text(LineOf(line_editor));
  const LineInfoW* line = el_wline(line_editor);
  const auto behind_cursor = static_cast<int>(line->lastchar - line->cursor);
  el_cursor(line_editor, behind_cursor);
  el_wdeletestr(line_editor, static_cast<int>(text.size()));
  el_wset(line_editor, EL_REFRESH);
  el_resize(line_editor);
  room = SIZE_MAX;
  MakeRows(text.size());
  if (!text.empty()) el_winsertstr(line_editor, text.c_str());
  el_cursor(line_editor, -behind_cursor);
  el_wset(line_editor, EL_REFRESH);
}

void LineEditor::Impl::MakeRows(std::size_t size) {
  constexpr std::size_t kRoomStep = std::size_t{1} << 16;
  winsize window{};
  if (::ioctl(STDIN_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return;
  room = size + kRoomStep;
  // A character takes two columns at most, and one may be left over in each row.
  const std::size_t rows = 2 * room / static_cast<std::size_t>(std::max(1, window.ws_col - 1)) + 2;
  el_wset(editor.get(), EL_SETTC, L"li", std::to_wstring(rows).c_str(), nullptr);
}

int LineEditor::Impl::Next(EditLine* editor, wchar_t* out) {
  Impl& impl = Of(editor);
  if (const std::size_t size = LineOf(editor).size(); size + kRoomMin > impl.room) {
    impl.MakeRows(size);
    el_wset(editor, EL_REFRESH);
  }
  if (!std::exchange(impl.reading, true)) impl.guard.Keep();  // now the terminal is set for it
  const std::optional<char32_t> key = impl.keys.Next();
  if (!key.has_value()) {
    impl.typed = LineOf(editor);  // the library forgets it
    return 0;
  }
  *out = static_cast<wchar_t>(*key);
  return 1;
}

unsigned char LineEditor::Impl::Paste(EditLine* editor, wint_t) {
  const std::optional<std::string> text = Of(editor).keys.RestOfPaste(kPasteBytesMax);
  if (!text.has_value()) return CC_EOF;
  const std::wstring wide = ToWide(*text);
  Impl& impl = Of(editor);
  const std::size_t size = LineOf(editor).size() + wide.size();
  if (size + kRoomMin > impl.room) impl.MakeRows(size);
  return el_winsertstr(editor, wide.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::Impl::BreakLine(EditLine* editor, wint_t) {
  return el_winsertstr(editor, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::Impl::Complete(EditLine* editor, wint_t key) {
  if (LineOf(editor).starts_with(L"/file ")) return _el_fn_complete(editor, static_cast<int>(key));
  return el_winsertstr(editor, L"\t") == 0 ? CC_REFRESH : CC_ERROR;
}

wchar_t* LineEditor::Impl::Prompt(EditLine*) {
  static wchar_t prompt[] = L"> ";
  return prompt;
}

absl::StatusOr<std::unique_ptr<LineEditor>> LineEditor::Open(
    const std::vector<std::string>& history) {
  // Standard output and error may be files.
  std::array<char, PATH_MAX> path{};
  if (const int error = ::ttyname_r(STDIN_FILENO, path.data(), path.size()); error != 0) {
    return ErrnoStatus(error, "find the terminal that is standard input");
  }
  FileHandle display(std::fopen(path.data(), "we"));
  if (display == nullptr) return ErrnoStatus(errno, fmt::format("open {}", path.data()));
  auto impl = std::make_unique<Impl>();
  impl->display = std::move(display);
  impl->history.reset(history_winit());
  HistEventW event{};
  history_w(impl->history.get(), &event, H_SETSIZE, kRememberedMax);
  history_w(impl->history.get(), &event, H_SETUNIQUE, 1);
  EditLine* editor = el_init("cairn", stdin, impl->display.get(), impl->display.get());
  if (editor == nullptr) return Internal("libedit does not start on {}", path.data());
  impl->editor.reset(editor);
  el_wset(editor, EL_CLIENTDATA, impl.get());
  el_wset(editor, EL_GETCFN, Impl::Next);
  el_wset(editor, EL_PROMPT, Impl::Prompt);
  el_wset(editor, EL_HIST, history_w, impl->history.get());
  el_wset(editor, EL_EDITOR, L"emacs");
  el_source(editor, nullptr);  // the user's ~/.editrc
  el_wset(editor, EL_ADDFN, L"cairn-paste", L"Insert what is pasted", Impl::Paste);
  el_wset(editor, EL_ADDFN, L"cairn-line-break", L"Insert a line break", Impl::BreakLine);
  el_wset(editor, EL_ADDFN, L"cairn-complete", L"Complete a file's name", Impl::Complete);
  for (const auto& [key, function] : kKeys) {
    el_wset(editor, EL_BIND, key, function, nullptr);
  }
  // Pasted line ends come as they are. Between two reads nothing of what is typed is shown, cut, or
  // taken as a line.
  el_wset(editor, EL_SETTY, L"-d", L"-inlcr", L"-icrnl", nullptr);
  el_wset(editor, EL_SETTY, L"-x", L"-icrnl", L"-icanon", L"-echo", nullptr);
  el_wset(editor, EL_PREP_TERM, 1);
  el_wset(editor, EL_PREP_TERM, 0);
  impl->guard.Keep();
  impl->MakeRows(0);
  std::unique_ptr<LineEditor> out(new LineEditor(std::move(impl)));
  for (const std::string& text : history) out->Remember(text);
  return out;
}

LineEditor::LineEditor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LineEditor::~LineEditor() = default;

TypedInput LineEditor::Read(const InterruptCancels& interrupt) {
  EditLine* editor = impl_->editor.get();
  impl_->interrupt = &interrupt;
  impl_->reading = false;
  impl_->typed.clear();
  int size = 0;
  const wchar_t* line = el_wgets(editor, &size);
  impl_->interrupt = nullptr;
  impl_->guard.Keep();
  if (line == nullptr || size <= 0) {
    // The cursor is behind the prompt, or behind what was typed.
    std::fputc('\n', impl_->display.get());
    std::fflush(impl_->display.get());
    if (!interrupt.interrupted()) return {};
    return {.kind = TypedInput::Kind::kInterrupt, .text = ToUtf8(impl_->typed)};
  }
  std::wstring_view typed(line, static_cast<std::size_t>(size));
  if (typed.ends_with(L'\n')) typed.remove_suffix(1);
  std::string text = ToUtf8(typed);
  const std::int64_t size_bytes = std::ssize(text);
  return {TypedInput::Kind::kText, std::move(text), size_bytes};
}

void LineEditor::Remember(const std::string& text) {
  HistEventW event{};
  history_w(impl_->history.get(), &event, H_ENTER, ToWide(text).c_str());
}

}  // namespace cairn::cli
