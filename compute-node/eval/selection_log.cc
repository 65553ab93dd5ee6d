#include "compute-node/eval/selection_log.h"

#include <iterator>

#include <fmt/format.h>

namespace cairn::eval {

std::string SelectionLine(const Selection& selection) {
  std::string line = fmt::format(
      R"({{"policy":"{}","position":{},"layer":{},"kv_head":{},"attended":[)", selection.policy,
      selection.position, selection.head.layer, selection.head.kv_head);
  const std::span<const std::int64_t> attended = selection.attended;
  for (std::size_t first = 0; first < attended.size();) {
    std::size_t end = first + 1;
    while (end < attended.size() && attended[end] == attended[end - 1] + 1) ++end;
    fmt::format_to(std::back_inserter(line), "{}[{},{}]", first == 0 ? "" : ",", attended[first],
                   end - first);
    first = end;
  }
  return line + "]}\n";
}

}  // namespace cairn::eval
