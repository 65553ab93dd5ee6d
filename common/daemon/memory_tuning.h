// Settings of malloc for a process that moves buffers of 64 KiB to some MiB all the time.
#pragma once

namespace cairn {

// Call first thing in main, before threads start.
void TuneMemory();

}  // namespace cairn
