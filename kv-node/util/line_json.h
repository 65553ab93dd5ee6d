// The lines of this tool as JSON, for programs. Pure function.
#pragma once

#include <string>
#include <string_view>

namespace cairn::kv {

// `finding kind=row page=3 reason="no row"` as {"line": "finding", "kind": "row", "page": 3,
// "reason": "no row"}. REQUIRES: a word, then fields as FormatFinding writes them: a quoted value
// holds no quotes.
std::string LineAsJson(std::string_view line);

}  // namespace cairn::kv
