// Material outside the repository that some tests compare with when it is there: reference logits,
// vocabularies, a trained model. It lies in $CAIRN_SHARED (default: ../shared beside the
// repository). Tests that need it are in tests/shared and
// skip without it.
#pragma once

#include <string>

namespace cairn::test {

// Empty when the folder is not there.
std::string SharedFolder();

inline constexpr const char* kNoSharedFolder =
    "SKIPPED: needs the shared material; set CAIRN_SHARED to its folder";

// Runs a shell command and returns its standard output. Ends the process when the command fails.
std::string CommandOutput(const std::string& command);

}  // namespace cairn::test
