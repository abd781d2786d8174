#include "dist/launch.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace thimble {

namespace {

using Variable = std::function<const char*(const char*)>;

// What is not a number of ours counts as not set.
int number(const Variable& variable, const char* name, int otherwise) {
  const char* text = variable(name);
  if (!text) return otherwise;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, problem] = std::from_chars(text, end, value);
  return problem == std::errc() && stop == end && value >= 0 ? value : otherwise;
}

// "4(x2),3": four on each of two machines, three on another. Of machines that are not alike the first counts.
int tasks_here(const char* text) {
  int value = 0;
  if (text) std::from_chars(text, text + std::strlen(text), value);
  return std::max(1, value);
}

Launch checked(Launch launch) {
  const bool sane = launch.size > 1 && launch.rank < launch.size;
  if (!sane) return {};
  if (launch.local_rank >= launch.local_size) launch.local_rank = 0, launch.local_size = 1;
  return launch;
}

}  // namespace

Launch read_launch(const Variable& variable) {
  if (variable("OMPI_COMM_WORLD_SIZE"))
    return checked({.by = "mpirun",
                    .rank = number(variable, "OMPI_COMM_WORLD_RANK", 0),
                    .size = number(variable, "OMPI_COMM_WORLD_SIZE", 1),
                    .local_rank = number(variable, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
                    .local_size = number(variable, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)});
  // Of the step, not of the job: a batch script that runs one thimble has SLURM_NTASKS, too.
  if (variable("SLURM_STEP_NUM_TASKS"))
    return checked({.by = "srun",
                    .rank = number(variable, "SLURM_PROCID", 0),
                    .size = number(variable, "SLURM_STEP_NUM_TASKS", 1),
                    .local_rank = number(variable, "SLURM_LOCALID", 0),
                    .local_size = tasks_here(variable("SLURM_STEP_TASKS_PER_NODE"))});
  // Hydra: MPICH's and Intel's mpirun.
  if (variable("PMI_SIZE"))
    return checked({.by = "mpirun",
                    .rank = number(variable, "PMI_RANK", 0),
                    .size = number(variable, "PMI_SIZE", 1),
                    .local_rank = number(variable, "MPI_LOCALRANKID", 0),
                    .local_size = number(variable, "MPI_LOCALNRANKS", 1)});
  return {};
}

Launch read_launch() {
  return read_launch(std::getenv);
}

int threads_of_rank(const Launch& launch, int allowed, int logical) {
  const bool bound = allowed * launch.local_size <= logical;
  return std::max(1, bound ? allowed : allowed / launch.local_size);
}

}  // namespace thimble
