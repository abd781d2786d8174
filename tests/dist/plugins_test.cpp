#include "dist/plugins.h"

#include <map>

namespace thimble {
namespace {

Launch launched(const std::map<std::string, std::string>& variables) {
  return read_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, RecognizesMpirunAndSrun) {
  const Launch mpirun = launched({{"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_RANK", "3"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(mpirun.by, "mpirun");
  EXPECT_EQ(mpirun.rank, 3);
  EXPECT_EQ(mpirun.size, 4);
  EXPECT_EQ(mpirun.local_rank, 1);
  EXPECT_EQ(mpirun.local_size, 2);

  const Launch srun = launched({{"SLURM_STEP_NUM_TASKS", "8"},
                                {"SLURM_PROCID", "5"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}});
  EXPECT_EQ(srun.local_rank, 1);
  EXPECT_EQ(srun.local_size, 4);
  EXPECT_EQ(srun.by, "srun");
  EXPECT_EQ(srun.rank, 5);
  EXPECT_EQ(srun.size, 8);

  EXPECT_FALSE(launched({}).several());
  EXPECT_FALSE(launched({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}).several());
}

TEST(Launch, BatchScriptVariablesDoNotMeanSeveralRanks) {
  EXPECT_FALSE(launched({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).several());
}

TEST(Launch, InvalidVariablesMeanASingleRank) {
  for (const char* size : {"", "-3", "four", "4x", "99999999999999999999"})
    EXPECT_FALSE(launched({{"OMPI_COMM_WORLD_SIZE", size}}).several()) << size;
  EXPECT_FALSE(launched({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "2"}}).several());
}

TEST(Launch, RanksOnOneMachineDivideItsProcessors) {
  const Launch alone, two{.by = "mpirun", .rank = 1, .size = 2, .local_rank = 1, .local_size = 2};
  EXPECT_EQ(threads_of_rank(alone, 8, 8), 8);
  EXPECT_EQ(threads_of_rank(two, 8, 8), 4);
  EXPECT_EQ(threads_of_rank(two, 4, 8), 4);  // bound: the launcher has divided the CPUs
  EXPECT_EQ(threads_of_rank(two, 1, 1), 1);
  const Launch many{.by = "mpirun", .rank = 0, .size = 4, .local_rank = 0, .local_size = 4};
  EXPECT_EQ(threads_of_rank(many, 2, 2), 1);
}

}  // namespace
}  // namespace thimble
