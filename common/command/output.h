// What commands print. Answers go through WriteOutput, which notices a reader that went away and a
// full disk; everything for the person goes through WriteNote, where a failure changes nothing.
//
// Threading:  one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace cairn::cli {

// Writes to standard output and flushes. After the first failure nothing more is written, and
// every call returns that failure.
absl::Status WriteOutput(std::string_view text);

// What WriteOutput has failed with so far.
absl::Status OutputStatus();

// Whether it failed because nobody reads any more (cairn ... | head): not worth a message.
bool OutputReaderIsGone();

// Text that a model wrote, or somebody else, as it goes to WriteOutput: where that is a terminal
// control characters other than line ends and tabs are escaped, because a terminal obeys them.
std::string ForTheReader(std::string_view text);

// "3.2 MiB".
std::string HumanBytes(std::int64_t bytes);

// Writes to standard error.
void WriteNote(std::string_view text);

// Writes `program: message` to standard error. A message may quote what others wrote, so control
// characters in it are escaped.
void WriteProblem(std::string_view program, std::string_view message);

}  // namespace cairn::cli
