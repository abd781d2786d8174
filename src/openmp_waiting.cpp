// How long idle OpenMP threads spin before they sleep.
//
// By default libgomp spins for milliseconds. That is right on a machine of one's own; with a browser, a second run or a
// parallel test beside it, every small parallel loop then waits for a time slice (seen: training 16 times slower on two busy
// cores). A short spin keeps the speed of the first case and is harmless in the second. libgomp reads its settings when it is
// loaded, before main and before any constructor of ours, so they are set in .preinit_array, which runs earlier.
#include <cstdlib>

namespace {

void set_spin_count() {
  if (!std::getenv("OMP_WAIT_POLICY")) setenv("GOMP_SPINCOUNT", "1000", 0);
}

__attribute__((section(".preinit_array"), used)) void (*const run_before_libraries)() = set_spin_count;

}  // namespace
