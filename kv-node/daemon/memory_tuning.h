// Settings of malloc for a process that moves buffers of 64 KiB to some MiB all the time.
#pragma once

namespace cairn::kv {

// Call first thing in main, before threads start.
void TuneMemory();

}  // namespace cairn::kv
