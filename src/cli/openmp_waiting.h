// How long idle OpenMP threads spin before they sleep.
//
// By default libgomp spins for milliseconds. That is right on a machine of one's own; with a browser, a
// second run or parallel tests beside it, every small parallel loop then waits for a time slice
// (docs/benchmarks.md has figures). A short spin keeps the speed of the first case and is harmless in the
// second.
#pragma once

namespace thimble {

// libgomp reads its settings when it is loaded, long before main: the way to set them is to start again.
// Returns if they are set already, by the user or by the first start.
void restart_with_short_spin(char** argv);

}  // namespace thimble
