// The binary: finds the command, runs it, turns what it throws into messages and exit codes. (kExitInterrupted is in
// base/interrupt.h.)
#pragma once

namespace thimble {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

int run_thimble(int argc, char** argv);

}  // namespace thimble
