#include "common/daemon/config_error.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/closest_name.h"

namespace cairn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr std::string_view kKeyCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";

// Those of groups too.
void AddKeys(const Descriptor& keys, std::vector<const FieldDescriptor*>& all) {
  for (int i = 0; i < keys.field_count(); ++i) {
    all.push_back(keys.field(i));
    const Descriptor* group = keys.field(i)->message_type();
    if (group != nullptr) AddKeys(*group, all);
  }
}

// The key of that name, whatever its group; null: none has it.
const FieldDescriptor* FindKey(const std::string& name, const Descriptor& keys) {
  std::vector<const FieldDescriptor*> all;
  AddKeys(keys, all);
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const FieldDescriptor* key) { return key->name() == name; });
  return found == all.end() ? nullptr : *found;
}

// The name of the group that `key` is in; empty: none.
std::string GroupOf(const FieldDescriptor& key, const Descriptor& keys) {
  for (int i = 0; i < keys.field_count(); ++i) {
    if (keys.field(i)->message_type() == key.containing_type()) return keys.field(i)->name();
  }
  return "";
}

// ": did you mean KEY?", or where the key stands if it is one, or nothing if no key is like that.
std::string Suggestion(const std::string& unknown, const Descriptor& keys) {
  if (const FieldDescriptor* key = FindKey(unknown, keys); key != nullptr) {
    const std::string group = GroupOf(*key, keys);
    return group.empty() ? ": it stands outside of braces"
                         : fmt::format(": write {} {{ {}: ... }}", group, unknown);
  }
  std::vector<const FieldDescriptor*> all;
  AddKeys(keys, all);
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const FieldDescriptor* key : all) names.emplace_back(key->name());
  const std::string best = ClosestName(unknown, names);
  return best.empty() ? "" : fmt::format(": did you mean {}?", best);
}

// The start of line `number`, from 0.
std::size_t LineStart(std::string_view text, int number) {
  std::size_t start = 0;
  for (int i = 0; i < number; ++i) {
    const std::size_t end = text.find('\n', start);
    if (end == std::string_view::npos) return text.size();
    start = end + 1;
  }
  return start;
}

// Where that column of protobuf's is in a line: a tab goes to the next multiple of eight.
std::size_t ByteAt(std::string_view line, int column) {
  std::size_t at = 0;
  for (int i = 0; at < line.size() && i < column; ++at) i += line[at] == '\t' ? 8 - i % 8 : 1;
  return at;
}

// The key whose value such text ends in: the last word before a colon or a brace, or without one
// the last word. Strings and comments have no words.
std::string KeyAtEnd(std::string_view text) {
  std::string_view key;
  std::string_view word;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '#') break;
    if (c == '"' || c == '\'') {
      std::size_t end = at + 1;
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      at = end + 1;
      continue;
    }
    if (c == ':' || c == '{') key = word;
    const std::size_t end = std::min(text.find_first_not_of(kKeyCharacters, at), text.size());
    if (end > at) word = text.substr(at, end - at);
    at = std::max(end, at + 1);
  }
  return std::string(key.empty() ? word : key);
}

// What protobuf names behind `words`, which end with a quote; empty: the message has no such words.
std::string NameBehind(std::string_view words, std::string_view message) {
  const std::size_t at = message.find(words);
  if (at == std::string_view::npos) return "";
  message.remove_prefix(at + words.size());
  return std::string(message.substr(0, message.find('"')));
}

std::string_view AllowedValues(const FieldDescriptor& key) {
  switch (key.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return "a text in quotes";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "keys in braces";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number, not below 0";
    default:
      return "a whole number";
  }
}

}  // namespace

void ConfigError::AddError(int line, google::protobuf::io::ColumnNumber column,
                           const std::string& message) {
  if (!what_.empty()) return;
  const std::size_t start = LineStart(text_, line);
  const std::string_view rest = text_.substr(start);
  const std::size_t byte = ByteAt(rest.substr(0, rest.find('\n')), column);
  const std::string unknown = NameBehind("has no field named \"", message);
  if (!unknown.empty()) {
    // protobuf tells where the word behind it is.
    const std::size_t at = text_.rfind(unknown, start + byte);
    const auto before = static_cast<std::size_t>(
        at == std::string_view::npos
            ? 0
            : std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    const std::size_t its_start = LineStart(text_, static_cast<int>(before));
    what_ = fmt::format("{}:{}: there is no key {}{}", before + 1, at - its_start + 1, unknown,
                        Suggestion(unknown, keys_));
    return;
  }
  what_ = fmt::format("{}:{}: ", line + 1, byte + 1);
  const std::string twice = NameBehind("Non-repeated field \"", message);
  const std::string boolean = NameBehind("Invalid value for boolean field \"", message);
  if (!twice.empty()) {
    what_ += fmt::format("{} is here a second time: give it once", twice);
    const FieldDescriptor* key = FindKey(twice, keys_);
    if (key != nullptr && key->message_type() != nullptr) what_ += ", with all keys in its braces";
  } else if (message == "Expected identifier, got: ") {
    what_ += "the file ends, and a closing brace is missing";
  } else if (message == "Expected identifier, got: }") {
    what_ += "there is a closing brace too many";
  } else if (!boolean.empty()) {
    what_ += fmt::format("{} must be true or false", boolean);
  } else {
    what_ += message.ends_with('.') ? message.substr(0, message.size() - 1) : message;
    if (message.starts_with("Expected identifier")) return;  // not about a value
    const FieldDescriptor* key = FindKey(KeyAtEnd(rest.substr(0, byte)), keys_);
    if (key != nullptr) what_ += fmt::format(": {} must be {}", key->name(), AllowedValues(*key));
  }
}

}  // namespace cairn
