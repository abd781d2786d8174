// How this process was started: by itself, or as one of several by mpirun or srun. Read from the environment, before any
// library is opened.
#pragma once

#include <functional>
#include <string>

namespace thimble {

struct Launch {
  std::string by;  // "mpirun", "srun"; empty: by itself
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine; local_size 1 where it is not known

  bool several() const { return size > 1; }
};

// `variable` returns a variable's value, nullptr where it is not set: std::getenv unless a test says otherwise.
Launch read_launch(const std::function<const char*(const char*)>& variable);
Launch read_launch();

// How many threads one rank should use, where nobody said: its share of the machine's processors. `allowed` are those
// this process may use. A launcher that binds its processes has divided them already.
int threads_of_rank(const Launch& launch, int allowed, int logical);

}  // namespace thimble
