#include "cli/openmp_waiting.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace thimble {

void restart_with_short_spin(char** argv) {
  prctl(PR_SET_NAME, program_invocation_short_name);  // after the restart ps and pkill would know it as "exe"
  constexpr const char* kVariable = "GOMP_SPINCOUNT";
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv(kVariable)) return;
  if (setenv(kVariable, "1000", 0) != 0) return;
  execv("/proc/self/exe", argv);  // where that fails, we go on as we are
}

}  // namespace thimble
