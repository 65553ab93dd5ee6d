// Texts from outside (names in a model's file, labels, what a message quotes) as a terminal shows
// them: without characters that would move its cursor, change its colours or its title, or turn
// the direction of the text.
//
// Threading:  pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// C0 and C1 controls, DEL, line separators, and marks of direction.
bool IsControlCharacter(std::uint32_t code_point);

// One line: control characters become \n, \t, \u001b and so on, bytes that are no UTF-8 \xff.
std::string EscapeControls(std::string_view text);

// The same for a text of several lines: line ends and tabs stay.
std::string EscapeControlsInLines(std::string_view text);

}  // namespace cairn
