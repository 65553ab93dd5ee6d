#include "compute-node/eval/document.h"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/command/input.h"

namespace cairn::eval {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::string text;
  CAIRN_ASSIGN_OR_RETURN(text, cli::ReadFile(path, kTextBytesMax));
  if (text.empty()) return InvalidArgument("read {}: it is empty; give a file with a text", path);
  return text;
}

absl::StatusOr<std::string> ReadTasksDocument(const std::string& path, std::int64_t document) {
  std::string file;
  CAIRN_ASSIGN_OR_RETURN(file, cli::ReadFile(path, kTasksBytesMax));
  std::string_view rest = file;
  std::int64_t line_count = 0;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line_count++ < document) continue;
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    const auto context = value.is_object() ? value.find("context") : value.end();
    if (context == value.end() || !context->is_string() ||
        context->get_ref<const std::string&>().empty()) {
      return InvalidArgument(
          "read {}: line {} is no document: it must be a JSON object with a text "
          "\"context\"",
          path, document + 1);
    }
    return context->get<std::string>();
  }
  return InvalidArgument("read {}: there is no document {}: it has {}, counted from 0", path,
                         document, line_count);
}

}  // namespace cairn::eval
