#include "compute-node/model/chat/chat_template.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_join.h>

namespace cairn::compute {

// Around the content of a message.
struct ChatWrap {
  std::string_view before;
  std::string_view after;
};

// What distinguishes the families.
struct ChatForm {
  std::string_view name;
  ChatWrap system;
  ChatWrap user;
  ChatWrap assistant;
  std::string_view ask = {};        // in front of an answer
  std::string_view end = {};        // behind an answer; empty: the end-of-text token
  std::string_view separator = {};  // between two turns
  bool ends_all = false;            // `end` is behind every message
  bool puts_bos = false;            // at the start
  bool bos_each_turn = false;       // in front of each user's turn
  bool system_in_user = false;      // the system message is part of the first user's turn
  bool system_first_only = false;
  bool alternates = false;  // user, assistant, user, ...
  bool trims_input = false;
  bool trims_answers = false;
  bool drops_thoughts = false;  // of answers that are given
};

namespace {

using Kind = PromptPiece::Kind;

constexpr std::string_view kDeepseekUser = "<\uff5cUser\uff5c>";
constexpr std::string_view kDeepseekAssistant = "<\uff5cAssistant\uff5c>";
constexpr std::string_view kDeepseekEnd = "<\uff5cend\u2581of\u2581sentence\uff5c>";
constexpr std::string_view kThink = "<think>\\n";  // as it stands in a Jinja text
constexpr std::string_view kLlamaDates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
constexpr std::size_t kDefaultSystemBytesMax = 4096;

constexpr ChatForm kForms[] = {
    {.name = "chatml",
     .system = {"<|im_start|>system\n", ""},
     .user = {"<|im_start|>user\n", ""},
     .assistant = {"<|im_start|>assistant\n", ""},
     .ask = "<|im_start|>assistant\n",
     .end = "<|im_end|>",
     .separator = "\n",
     .ends_all = true},
    {.name = "llama2",
     .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {" ", " "},
     .bos_each_turn = true,
     .system_in_user = true,
     .system_first_only = true,
     .alternates = true,
     .trims_input = true,
     .trims_answers = true},
    {.name = "llama3",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", ""},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", ""},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
     .ask = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .end = "<|eot_id|>",
     .ends_all = true,
     .puts_bos = true,
     .trims_input = true,
     .trims_answers = true},
    {.name = "mistral-v1",
     .system = {"", "\n\n"},
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", ""},
     .puts_bos = true,
     .system_in_user = true,
     .system_first_only = true,
     .alternates = true},
    {.name = "mistral-v3",
     .system = {"", "\n\n"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", ""},
     .puts_bos = true,
     .system_in_user = true,
     .system_first_only = true,
     .alternates = true,
     .trims_answers = true},
    {.name = "mistral-v3-tekken",
     .system = {"", "\n\n"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", ""},
     .puts_bos = true,
     .system_in_user = true,
     .system_first_only = true,
     .alternates = true},
    {.name = "mistral-v7",
     .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", ""},
     .puts_bos = true},
    {.name = "mistral-v7-tekken",
     .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", ""},
     .puts_bos = true},
    {.name = "zephyr",
     .system = {"<|system|>\n", ""},
     .user = {"<|user|>\n", ""},
     .assistant = {"<|assistant|>\n", ""},
     .ask = "<|assistant|>\n",
     .separator = "\n",
     .ends_all = true},
    {.name = "deepseek3",
     .system = {"", ""},
     .user = {kDeepseekUser, ""},
     .assistant = {kDeepseekAssistant, ""},
     .ask = kDeepseekAssistant,
     .end = kDeepseekEnd,
     .puts_bos = true,
     .system_first_only = true,
     .drops_thoughts = true},
};

const ChatForm* FindForm(std::string_view name) {
  const auto* form = std::find_if(std::begin(kForms), std::end(kForms),
                                  [name](const ChatForm& item) { return item.name == name; });
  return form == std::end(kForms) ? nullptr : form;
}

// Which family a Jinja text belongs to, by what only that family writes; empty if none.
std::string_view FamilyOf(std::string_view text) {
  const auto has = [text](std::string_view part) { return text.find(part) != text.npos; };
  if (has("<|im_start|>")) {
    return has("<|im_sep|>") ? "" : "chatml";  // Phi 4 writes its headers otherwise
  }
  if (has("<|start_header_id|>") && has("<|eot_id|>")) {
    return "llama3";
  }
  if (has(kDeepseekUser) && has(kDeepseekAssistant) && has(kDeepseekEnd)) {
    return "deepseek3";
  }
  if (has("[INST]")) {
    if (has("[SYSTEM_PROMPT]")) {
      return has("[INST] ") ? "mistral-v7" : "mistral-v7-tekken";
    }
    if (has("<<SYS>>")) {
      return "llama2";
    }
    if (has("[AVAILABLE_TOOLS]") && !has(" [INST]")) {
      return has("[INST] ") ? "mistral-v3" : "mistral-v3-tekken";
    }
    return "mistral-v1";
  }
  // Others have these headers with other ends.
  constexpr std::string_view kZephyrUser = "<|user|>";
  constexpr std::size_t kEndDistanceMax = 64;
  const std::size_t user = text.find(kZephyrUser);
  if (user != text.npos && has("<|assistant|>") &&
      text.substr(user, kEndDistanceMax).find("eos_token") != text.npos) {
    return "zephyr";
  }
  return "";
}

// The system message that a ChatML template spells out. In the Jinja text its line ends are either
// themselves or written \n.
std::string DefaultSystemOf(std::string_view text) {
  for (const std::string_view start : {"<|im_start|>system\n", "<|im_start|>system\\n"}) {
    for (std::size_t at = text.find(start); at != text.npos; at = text.find(start, at + 1)) {
      const std::string_view rest = text.substr(at + start.size(), kDefaultSystemBytesMax);
      const std::string_view found = rest.substr(0, rest.find("<|im_end|>"));
      // Otherwise the message is put together by the program.
      const bool plain = found.size() < rest.size() && !found.empty() &&
                         found.find_first_of("'\"{}\\") == found.npos;
      if (plain) {
        return std::string(found);
      }
    }
  }
  return "";
}

constexpr std::string_view kTrimmedSpace = " \t\n\v\f\r";

std::string_view TrimmedLeft(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kTrimmedSpace), text.size()));
}

std::string_view TrimmedRight(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kTrimmedSpace) + 1);
}

// Writes turns of one family.
class ChatWriter {
 public:
  explicit ChatWriter(const ChatForm& form) : form_(form) {}

  void Add(Kind kind, std::string_view text = "") {
    if (!text.empty() || kind == Kind::kBos || kind == Kind::kEos) {
      pieces_.push_back({kind, std::string(text)});
    }
  }

  void End() {
    if (form_.end.empty()) {
      Add(Kind::kEos);
    } else {
      Add(Kind::kMarkup, form_.end);
    }
  }

  // The separator belongs to the turn behind it.
  void StartTurn() {
    if (has_turn_) {
      Add(Kind::kMarkup, form_.separator);
    }
    has_turn_ = true;
  }

  void AddSystem(std::string_view preamble, std::string_view content) {
    StartTurn();
    Add(Kind::kMarkup, form_.system.before);
    Add(Kind::kText, preamble);
    Add(Kind::kText, form_.trims_input ? TrimmedLeft(TrimmedRight(content)) : content);
    Add(Kind::kMarkup, form_.system.after);
    if (form_.ends_all) {
      End();
    }
  }

  // `system`: null, or the message that is part of this turn.
  void AddUser(std::string_view content, const ChatMessage* system) {
    StartTurn();
    if (form_.bos_each_turn) {
      Add(Kind::kBos);
    }
    Add(Kind::kMarkup, form_.user.before);
    if (system != nullptr) {
      Add(Kind::kMarkup, form_.system.before);
      Add(Kind::kText, system->content);
      Add(Kind::kMarkup, form_.system.after);
    }
    if (form_.trims_input) {
      // What is trimmed is both together.
      content = TrimmedRight(system != nullptr ? content : TrimmedLeft(content));
    }
    Add(Kind::kText, content);
    Add(Kind::kMarkup, form_.user.after);
    if (form_.ends_all) {
      End();
    }
  }

  void AddAnswer(std::string_view content) {
    StartTurn();
    Add(Kind::kMarkup, form_.assistant.before);
    constexpr std::string_view kThoughtsEnd = "</think>";
    const std::size_t thoughts_end = content.rfind(kThoughtsEnd);
    if (form_.drops_thoughts && thoughts_end != content.npos) {
      content.remove_prefix(thoughts_end + kThoughtsEnd.size());
    }
    Add(Kind::kText, form_.trims_answers ? TrimmedLeft(TrimmedRight(content)) : content);
    Add(Kind::kMarkup, form_.assistant.after);
    End();
  }

  void Follow() { has_turn_ = true; }
  void Ask(std::string_view header) {
    StartTurn();
    Add(Kind::kMarkup, header);
  }
  std::vector<PromptPiece> Take() { return std::move(pieces_); }

 private:
  const ChatForm& form_;
  std::vector<PromptPiece> pieces_;
  bool has_turn_ = false;
};

}  // namespace

ChatTemplate::ChatTemplate(const ChatForm& form) : form_(&form), ask_(form.ask) {}

std::string ChatTemplate::Names() {
  return absl::StrJoin(kForms, ", ",
                       [](std::string* out, const ChatForm& form) { *out += form.name; });
}

absl::StatusOr<ChatTemplate> ChatTemplate::ByName(std::string_view name) {
  const ChatForm* form = FindForm(name);
  if (form == nullptr) {
    return InvalidArgument("there is no chat template '{}': there are {}", name.substr(0, 64),
                           Names());
  }
  return ChatTemplate(*form);
}

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(std::string_view template_text) {
  if (template_text.empty()) {
    return NotFound(
        "the model file has no chat template: choose one with --chat-template NAME if it was "
        "trained on conversations ({})",
        Names());
  }
  const ChatForm* form = FindForm(FamilyOf(template_text));
  if (form == nullptr) {
    return Unimplemented(
        "the model file's chat template ({} bytes) is of no family that Cairn knows: choose the "
        "nearest with --chat-template NAME ({}), or generate from plain text",
        template_text.size(), Names());
  }
  ChatTemplate out(*form);
  if (form->name == "chatml") {
    out.default_system_ = DefaultSystemOf(template_text);
  } else if (form->name == "llama3" &&
             template_text.find("Cutting Knowledge Date") != std::string_view::npos) {
    out.system_preamble_ = kLlamaDates;
  } else if (form->name == "deepseek3" &&
             template_text.find(std::string(kDeepseekAssistant).append(kThink)) !=
                 std::string_view::npos) {
    out.ask_ += "<think>\n";
  }
  return out;
}

std::string_view ChatTemplate::name() const { return form_->name; }
std::string_view ChatTemplate::end_of_turn() const { return form_->end; }

absl::Status ChatTemplate::Check(std::span<const ChatMessage> messages, ChatPosition position,
                                 bool ask) const {
  if (messages.empty() || std::ssize(messages) > kChatMessagesMax) {
    return InvalidArgument("messages has {} messages: it must have 1 to {}", messages.size(),
                           kChatMessagesMax);
  }
  bool users_turn = true;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return InvalidArgument(
          "messages[{}].role is '{}': the template {} has system, user and assistant", i,
          role.substr(0, 64), name());
    }
    if (role == "system") {
      if (form_->system_first_only && (i > 0 || position != ChatPosition::kFirst)) {
        return InvalidArgument(
            "messages[{}] is a system message: the template {} has one only, at the start of a "
            "conversation",
            i, name());
      }
      continue;
    }
    if (form_->alternates && (role == "user") != users_turn) {
      return InvalidArgument(
          "messages[{}].role is {}, the template {} needs {} here: the user and the assistant take "
          "turns",
          i, role, name(), users_turn ? "user" : "assistant");
    }
    users_turn = !users_turn;
  }
  const std::string& last = messages.back().role;
  if (form_->system_in_user && last == "system") {
    return InvalidArgument("messages has only a system message: the template {} needs the user's",
                           name());
  }
  if (ask && last == "assistant") {
    return InvalidArgument(
        "the last of the messages is the assistant's: to get an answer end with the user's, to "
        "only store it set tokens_max to -1");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                              ChatPosition position,
                                                              bool ask) const {
  CAIRN_RETURN_IF_ERROR(Check(messages, position, ask));
  ChatWriter writer(*form_);
  if (position == ChatPosition::kOpen) {
    writer.End();
  }
  if (position != ChatPosition::kFirst) {
    writer.Follow();
  } else {
    if (form_->puts_bos) {
      writer.Add(Kind::kBos);
    }
    const bool has_system = messages.front().role == "system";
    if (!system_preamble_.empty()) {
      writer.AddSystem(system_preamble_, has_system ? messages.front().content : "");
      messages = messages.subspan(has_system ? 1 : 0);
    } else if (!has_system && !default_system_.empty()) {
      writer.AddSystem("", default_system_);
    }
  }
  const ChatMessage* pending_system = nullptr;
  for (const ChatMessage& message : messages) {
    if (message.role == "user") {
      writer.AddUser(message.content, std::exchange(pending_system, nullptr));
    } else if (message.role == "assistant") {
      writer.AddAnswer(message.content);
    } else if (form_->system_in_user) {
      pending_system = &message;
    } else {
      writer.AddSystem("", message.content);
    }
  }
  if (ask) {
    writer.Ask(ask_);
  }
  return writer.Take();
}

}  // namespace cairn::compute
