#include "compute-node/eval/commit.h"

#include <cairn_commit.h>

namespace cairn::eval {

std::string BuiltFrom() { return CAIRN_COMMIT; }

}  // namespace cairn::eval
