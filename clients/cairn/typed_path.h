// Names of files as a person types them, or as the Tab key completes them.
//
// Threading:  any thread.
#pragma once

#include <string>
#include <string_view>

namespace cairn::cli {

// The file that is meant by the rest of a line: with a shell's quotes and backslashes, as
// completion writes them, and ~/ for the home folder; blanks need neither. Taken letter by letter
// where only that names a file that is there, as in bob's and eve's.txt.
std::string FilePath(std::string_view typed);

// What FilePath takes for `path`.
std::string TypedPath(std::string_view path);

}  // namespace cairn::cli
