// Strict UTF-8, as far as tokenizers and checks of texts from outside need it.
//
// Threading:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// Bytes of the well-formed character at the start of `text`: 1 to 4, or 0 when there is none
// (empty, truncated, overlong, a surrogate, above U+10FFFF).
std::size_t Utf8CharacterBytes(std::string_view text);

// The same for one whose end may be still to come: true when `text` could be the beginning of a
// well-formed character that is longer than `text`.
bool IsUtf8Prefix(std::string_view text);

// Bytes of well-formed characters at the start of `text`: all of them when it is UTF-8, else the
// offset of the first byte that is not.
std::size_t Utf8GoodBytes(std::string_view text);

// `text` with U+FFFD for each byte of it that is part of no well-formed character.
std::string ReplaceBadUtf8(std::string_view text);

// The code point of the character that Utf8CharacterBytes() has found to be there.
std::uint32_t Utf8CodePoint(std::string_view character);

void AppendUtf8(std::uint32_t code_point, std::string& out);

// As many of the first `bytes_max` bytes as end with no character cut in two; at least one of a
// text that has any.
std::size_t Utf8WholeBytes(std::string_view text, std::size_t bytes_max);

}  // namespace cairn
