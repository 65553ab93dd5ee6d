#include "common/daemon/config_error.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/closest_name.h"

namespace cairn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr std::string_view kKeyCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";

// ": did you mean KEY?", or nothing if no key is like that.
std::string Suggestion(std::string_view unknown, const Descriptor& keys) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(keys.field_count()));
  for (int i = 0; i < keys.field_count(); ++i) names.emplace_back(keys.field(i)->name());
  const std::string best = ClosestName(unknown, names);
  return best.empty() ? "" : fmt::format(": did you mean {}?", best);
}

// The name that protobuf does not know, if that is what it says.
std::string UnknownName(const std::string& message) {
  constexpr std::string_view kUnknown = "has no field named \"";
  const std::size_t at = message.find(kUnknown);
  if (at == std::string::npos) return "";
  const std::string rest = message.substr(at + kUnknown.size());
  return rest.substr(0, rest.find('"'));
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

std::string_view AllowedValues(const FieldDescriptor& key) {
  switch (key.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return "a text in quotes";
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
  if (const std::string unknown = UnknownName(message); !unknown.empty()) {
    // protobuf tells where the word behind it is.
    const std::size_t at = text_.rfind(unknown, start + static_cast<std::size_t>(column));
    const auto before = static_cast<std::size_t>(
        at == std::string_view::npos
            ? 0
            : std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    const std::size_t its_start = LineStart(text_, static_cast<int>(before));
    what_ = fmt::format("{}:{}: there is no key {}{}", before + 1, at - its_start + 1, unknown,
                        Suggestion(unknown, keys_));
    return;
  }
  const std::string_view rest = text_.substr(start);
  const std::size_t first = std::min(rest.find_first_not_of(" \t"), rest.size());
  const std::string name(rest.substr(first, rest.find_first_not_of(kKeyCharacters, first) - first));
  const FieldDescriptor* key = keys_.FindFieldByName(name);
  what_ = fmt::format("{}:{}: {}", line + 1, column + 1, message);
  if (key != nullptr) what_ += fmt::format(": {} must be {}", name, AllowedValues(*key));
}

}  // namespace cairn
