// The name that somebody meant who misspelt it.
//
// Threading:  pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cairn {

// Of the known names the one that `unknown` is most like: at most a third of its letters, and
// three, are to be changed, added, left out or swapped with the next. Without one like it the only
// name that is a part of its words, or has them as a part: `tokens` for `max-tokens`. Empty: none.
std::string ClosestName(std::string_view unknown, std::span<const std::string> known);

}  // namespace cairn
