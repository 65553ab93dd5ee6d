#include "clients/cairn/chat.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "clients/cairn/typed_path.h"
#include "clients/cpp/request_check.h"
#include "common/command/input.h"
#include "common/command/output.h"

namespace cairn::cli {
namespace {

constexpr std::string_view kHelp =
    R"(What you type is your turn; the model answers it. These are commands:
  /file FILE  put a file in front of your next turn
  /new        begin a new conversation
  /help       show this
  /exit       end the chat, as Ctrl-D does
A space in front makes such a line a turn. A pasted text of many lines is one
turn, Alt-Enter types a line break. Ctrl-C ends an answer, not the chat.
)";

constexpr std::string_view kFileCommand = "/file";

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// "/word" alone or in front of a space: what looks like a command.
bool LooksLikeCommand(std::string_view text) {
  const std::string_view word = text.substr(0, text.find(' '));
  return word.size() > 1 && word.front() == '/' &&
         word.find_first_not_of("abcdefghijklmnopqrstuvwxyz", 1) == std::string_view::npos;
}

}  // namespace

Chat::Chat(CairnClient& client, ModelDescription model, ChatInput& input, ChatOptions options)
    : client_(client),
      model_(std::move(model)),
      input_(input),
      options_(std::move(options)),
      generate_(options_.generate) {}

absl::Status Chat::SetUpTemplate() {
  generate_.stop = model_.turn_stop;
  if (!model_.chat_template.empty()) return absl::OkStatus();
  if (input_.is_terminal()) {
    WriteNote(
        "the model has no chat template that Cairn knows, so that it goes on with what you type as "
        "with any text; cairn-compute-node --chat-template NAME chooses one\n");
  }
  if (!options_.system.empty()) {
    return InvalidArgument(
        "--system needs a chat template, and the model has none that cairn-compute-node knows: "
        "choose one with cairn-compute-node --chat-template NAME");
  }
  const std::size_t turn = model_.turn_template.find("{}");
  if (turn == std::string::npos) {
    return Internal("the turn template of cairn-compute-node has no {{}}");
  }
  before_ = model_.turn_template.substr(0, turn);
  after_ = model_.turn_template.substr(turn + 2);
  CAIRN_ASSIGN_OR_RETURN(generate_.parse_special, HasSpecial(before_ + after_));
  return absl::OkStatus();
}

void Chat::SetPrompt(const std::string& text) {
  if (model_.chat_template.empty()) {
    // What was cut off would become the beginning of what is typed.
    const bool breaks = ends_within_a_line_ && !before_.starts_with('\n');
    generate_.prompt = (breaks ? "\n" : "") + before_ + text + after_;
    return;
  }
  generate_.messages.clear();
  if (generate_.conversation_id == 0 && !options_.system.empty()) {
    generate_.messages.push_back({"system", options_.system});
  }
  generate_.messages.push_back({"user", text});
}

// Whether some of the text is the name of a special token.
absl::StatusOr<bool> Chat::HasSpecial(const std::string& text) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> added, client_.Tokenize("", true));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> parsed, client_.Tokenize(text, true));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::int32_t> plain, client_.Tokenize(text, false));
  return parsed.size() != plain.size() + added.size();
}

absl::Status Chat::CheckTurn(const std::string& what, const std::string& text,
                             std::int64_t size_bytes) {
  const std::int64_t bytes_max =
      kPromptBytesMax - std::ssize(before_) - std::ssize(after_) - std::ssize(options_.system);
  if (size_bytes > bytes_max) {
    return InvalidArgument("{} has {} bytes: at most {}; send it in parts", what, size_bytes,
                           bytes_max);
  }
  CAIRN_RETURN_IF_ERROR(CheckUtf8(what, text));
  if (!generate_.parse_special) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const bool forged, HasSpecial(text));
  if (!forged) return absl::OkStatus();
  return InvalidArgument("{} contains a special token's name: put it in other words", what);
}

absl::Status Chat::Generate(InterruptCancels& interrupt, TurnProgress& turn) {
  ProgressLine progress(options_.progress);
  generate_.on_started = [&](std::int64_t id, std::int64_t reused, std::int64_t prompt) {
    may_be_gone_ = reused == 0;  // it is deleted if nothing of the turn is stored
    generate_.conversation_id = id;
    interrupt.SetLastWords(WordsOfTheSecondInterrupt());
    turn = {.conversation_id = id, .reused_count = reused, .prompt_count = prompt};
  };
  generate_.on_prefill = [&](std::int64_t done, std::int64_t total) {
    turn.done_count = done;
    progress.Update("reading", done, total, "tokens");
    if (done == total) progress.Say("all of it is read, and now sorted ...");
  };
  generate_.on_recomputing = [&](std::int64_t done, std::int64_t total, std::string_view reason) {
    turn.recomputes = done < total;
    ShowRecomputing(progress, done, total, reason);
  };
  generate_.on_waiting = [&](std::string_view reason) {
    const std::string words = fmt::format("waiting: {}", reason);
    // The line that the answer stands in stays.
    turn.has_text ? WriteNote(fmt::format("\n({})\n", words)) : progress.Say(words);
  };
  generate_.on_text = [&](std::string_view text) {
    turn.has_text = true;
    ends_within_a_line_ = !text.ends_with('\n');
    progress.Clear();
    if (!WriteOutput(ForTheReader(text)).ok()) interrupt.Cancel();
  };
  interrupt.SetLastWords(WordsOfTheSecondInterrupt());
  const absl::StatusOr<GenerateResult> result = client_.Generate(generate_, interrupt.token());
  // The next turn follows this answer, or is refused. How much a cancelled one has stored is not
  // told.
  generate_.conversation_token_count.reset();
  if (result.ok()) {
    generate_.conversation_token_count = result->conversation_token_count;
    may_be_gone_ = false;
    if (result->reason == FinishReason::kEnd) ends_within_a_line_ = false;  // by a token
  }
  return result.status();
}

void Chat::BeginAnew() {
  generate_.conversation_id = 0;
  generate_.conversation_token_count.reset();
  ends_within_a_line_ = false;
  may_be_gone_ = false;
  in_doubt_.reset();
}

void Chat::NoteKept(const KeptTurn& kept) {
  may_be_gone_ = false;
  generate_.conversation_token_count = kept.token_count;
  if (kept.lacks_rest) ends_within_a_line_ = true;
}

void Chat::TellFailed(const TurnProgress& turn) {
  if (turn.conversation_id == 0 || turn.has_text || turn.recomputes) return;
  const absl::StatusOr<ConversationInfo> conversation =
      client_.FindConversation(turn.conversation_id);
  if (absl::IsNotFound(conversation.status())) return BeginAnew();
  if (!conversation.ok()) {
    in_doubt_ = turn;
    return;
  }
  KeptTurn kept = DescribeKept(turn, conversation->token_count);
  kept.token_count = conversation->token_count;
  NoteKept(kept);
  if (kept.lacks_rest) WriteNote(fmt::format("{}; your next turn goes on there\n", kept.text));
  if (kept.has_prompt) unanswered_files_.clear();
  TellFilesAreGone(kept.lacks_rest);
}

absl::Status Chat::ResolveDoubt() {
  if (!in_doubt_.has_value()) return absl::OkStatus();
  const absl::StatusOr<ConversationInfo> conversation =
      client_.FindConversation(in_doubt_->conversation_id);
  if (absl::IsNotFound(conversation.status())) {
    BeginAnew();
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(conversation.status());
  KeptTurn kept = DescribeKept(*std::exchange(in_doubt_, std::nullopt), conversation->token_count);
  kept.token_count = conversation->token_count;
  NoteKept(kept);
  if (!kept.lacks_rest) return absl::OkStatus();
  return InvalidArgument(
      "the turn that failed ended {}: type this once more to go on there, or `/new` before it",
      kept.text);
}

std::string Chat::WordsOfTheSecondInterrupt() const {
  return generate_.conversation_id == 0
             ? ""
             : WordsOfUnknownEnd("chat", generate_.conversation_id, options_.socket);
}

absl::Status Chat::Turn(const std::string& text, InterruptCancels& interrupt) {
  CAIRN_RETURN_IF_ERROR(ResolveDoubt());
  unanswered_files_ = std::exchange(pending_files_, {});
  const std::string whole = std::exchange(pending_, "") + text;
  SetPrompt(whole);
  TurnProgress turn;
  absl::Status status = Generate(interrupt, turn);
  if (absl::IsNotFound(status) && may_be_gone_) {
    // It held nothing when its first turn failed.
    BeginAnew();
    SetPrompt(whole);
    status = Generate(interrupt, turn);
  }
  if (status.ok() || turn.has_text) unanswered_files_.clear();  // the conversation has them
  if (absl::IsInvalidArgument(status)) return status;           // nothing came
  CAIRN_RETURN_IF_ERROR(WriteOutput("\n"));
  // Ctrl-C ends the answer, not the chat.
  if (!absl::IsCancelled(status) || !interrupt.interrupted()) {
    if (!status.ok()) failed_ = turn;
    return status;
  }
  TellInterrupted(turn);
  return absl::OkStatus();
}

void Chat::TellFilesAreGone(bool part_is_kept) {
  for (const std::string& path : std::exchange(unanswered_files_, {})) {
    WriteNote(fmt::format(
        "{} is no longer in front of your next turn: `/file {}` puts {}\n", path, TypedPath(path),
        part_is_kept ? "all of it there again, behind the part that is kept; `/new` before it "
                       "begins without that part"
                     : "it there again"));
  }
}

void Chat::TellInterrupted(const TurnProgress& turn) {
  if (turn.recomputes) {
    WriteNote(fmt::format("interrupted {}\n", kKeptOfRecomputing));
    return TellFilesAreGone();
  }
  if (turn.conversation_id == 0) {
    WriteNote("interrupted before the turn was begun\n");
    return TellFilesAreGone();
  }
  ProgressLine progress(options_.progress);
  const KeptTurn kept = AskWhatIsKept(client_, turn, progress);
  if (kept.conversation_is_gone) {
    BeginAnew();
    WriteNote(fmt::format("interrupted {}\n", kept.text));
  } else {
    NoteKept(kept);
    WriteNote(fmt::format("interrupted{} {}; your next turn goes on there, and so does {}\n",
                          turn.has_text ? ":" : "", kept.text,
                          GoOnCommand("chat", turn.conversation_id, options_.socket)));
  }
  if (kept.has_prompt) unanswered_files_.clear();
  TellFilesAreGone(kept.lacks_rest);
}

absl::Status Chat::AddFile(const std::string& path) {
  if (path.empty()) return InvalidArgument("/file needs the name of a file");
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kPromptBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckTurn(path, text, std::ssize(text) + std::ssize(pending_)));
  pending_files_.push_back(path);
  pending_ += text;
  if (!pending_.ends_with('\n')) pending_ += '\n';
  if (input_.is_terminal()) {
    WriteNote(fmt::format("{}: {}, in front of your next turn; an empty line sends it alone\n",
                          path, HumanBytes(std::ssize(text))));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Chat::TakeCommand(const std::string& text, Next& next) {
  const std::string_view line = Trimmed(text);
  if (text.starts_with(' ')) return false;
  if (line == "/exit") {
    next = Next::kEnd;
  } else if (line == "/help") {
    WriteNote(kHelp);
  } else if (line == "/new") {
    if (generate_.conversation_id != 0 && !may_be_gone_) {
      WriteNote(fmt::format("conversation {} stays: go on with it by {}\n",
                            generate_.conversation_id,
                            GoOnCommand("chat", generate_.conversation_id, options_.socket)));
    }
    BeginAnew();
  } else if (line == kFileCommand || line.starts_with("/file ")) {
    // Blanks at the end of the line may be a part of the name.
    const absl::Status added = AddFile(
        FilePath(std::string_view(text).substr(text.find(kFileCommand) + kFileCommand.size())));
    // Whatever is wrong with a file, another one may be named.
    if (!added.ok()) return InvalidArgument("{}", Message(added));
  } else if (LooksLikeCommand(line)) {
    return InvalidArgument(
        "there is no {}: /help shows the commands; a space in front makes it a turn",
        line.substr(0, line.find(' ')));
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<Chat::Next> Chat::Take(const TypedInput& input, InterruptCancels& interrupt) {
  if (input.size_bytes == 0 && pending_.empty()) return Next::kGoOn;
  input_.Remember(input.text);
  Next next = Next::kGoOn;
  CAIRN_ASSIGN_OR_RETURN(const bool is_command, TakeCommand(input.text, next));
  if (is_command) return next;
  const std::string separator = pending_.empty() || input.text.empty() ? "" : "\n";
  CAIRN_RETURN_IF_ERROR(CheckTurn("this line", input.text,
                                  input.size_bytes + std::ssize(separator) + std::ssize(pending_)));
  CAIRN_RETURN_IF_ERROR(Turn(separator + input.text, interrupt));
  return next;
}

absl::StatusOr<Chat::Next> Chat::Interrupted(const std::string& typed) {
  if (!input_.is_terminal()) return Cancelled("interrupted");
  if (!typed.empty()) return Next::kGoOn;
  if (std::exchange(told_how_to_leave_, true)) return Next::kEnd;
  WriteNote("Ctrl-C once more, Ctrl-D or /exit ends the chat\n");
  return Next::kGoOn;
}

bool Chat::CanGoOn(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return true;
  // A person may start a daemon again, or wait, or begin anew.
  if (!input_.is_terminal() || !OutputStatus().ok()) return false;
  if (!absl::IsFailedPrecondition(status)) return true;
  // Of another model, say: no turn of it will do better.
  const absl::StatusOr<ConversationInfo> conversation =
      client_.FindConversation(generate_.conversation_id);
  return conversation.ok() && conversation->usable;
}

void Chat::TellWhatFollows(const absl::Status& status) {
  if (absl::IsNotFound(status) && generate_.conversation_id != 0) {
    BeginAnew();
    WriteNote("your next turn begins a new conversation\n");
  } else if (absl::IsFailedPrecondition(status)) {
    WriteNote(
        "your next turn goes on behind what the conversation holds by then; `/new` begins a new "
        "one\n");
  }
}

absl::Status Chat::Talk() {
  using Second = InterruptCancels::Second;
  InterruptCancels interrupt(Second::kWaits);
  for (Next next = Next::kGoOn; next == Next::kGoOn;) {
    CAIRN_ASSIGN_OR_RETURN(const TypedInput input, input_.Next(interrupt));
    if (input.kind == TypedInput::Kind::kInterrupt) {
      interrupt.TakeOne();
      CAIRN_ASSIGN_OR_RETURN(next, Interrupted(input.text));
      continue;
    }
    told_how_to_leave_ = false;
    failed_.reset();
    // A pipe that has only the file to say ends with it.
    const bool ends = input.kind == TypedInput::Kind::kEnd;
    if (ends && (input_.is_terminal() || pending_.empty())) break;
    interrupt.SetSecond(Second::kEndsTheProcess);  // a daemon may say nothing for ever
    const absl::StatusOr<Next> taken = Take(input, interrupt);
    interrupt.SetSecond(Second::kWaits);
    interrupt.Reset();
    if (taken.ok()) {
      next = *taken;
    } else if (CanGoOn(taken.status())) {
      WriteProblem("cairn", Message(taken.status()));
      if (failed_.has_value()) TellFailed(*failed_);
      TellWhatFollows(taken.status());
      TellFilesAreGone();
      ++refused_count_;
    } else {
      const bool is_told = !ends && !OutputReaderIsGone() && !absl::IsCancelled(taken.status());
      if (is_told) WriteNote("the chat ends here: lines behind this one are not sent\n");
      return taken.status();
    }
    if (ends) break;
  }
  // A person has seen it; a script is told.
  if (input_.is_terminal() || refused_count_ == 0) return absl::OkStatus();
  return InvalidArgument("lines that were refused: {}", refused_count_);
}

void Chat::TellTheEnd(const absl::Status& status) {
  // Where it cannot be gone on with, saying how would be wrong.
  const bool is_over = absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
  if (generate_.conversation_id == 0 || is_over || OutputReaderIsGone()) return;
  // Otherwise nobody is asked: a daemon that hangs would keep the chat from ending.
  if (may_be_gone_ && !client_.FindConversation(generate_.conversation_id).ok()) return;
  WriteNote(fmt::format("conversation={}: go on with {}\n", generate_.conversation_id,
                        GoOnCommand("chat", generate_.conversation_id, options_.socket)));
}

absl::Status Chat::Run() {
  CAIRN_RETURN_IF_ERROR(SetUpTemplate());
  if (generate_.conversation_id != 0 && model_.chat_template.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const std::string held,
                           client_.ReadConversation(generate_.conversation_id));
    ends_within_a_line_ = !held.empty() && !held.ends_with('\n');
  }
  if (!options_.file.empty()) CAIRN_RETURN_IF_ERROR(AddFile(options_.file));
  absl::Status status = Talk();
  TellTheEnd(status);
  return status;
}

}  // namespace cairn::cli
