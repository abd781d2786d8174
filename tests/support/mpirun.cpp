#include "support/mpirun.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace thimble {

namespace {

namespace fs = std::filesystem;

fs::path program(const std::string& name) {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((fs::path(folder) / name).c_str(), X_OK) == 0) return fs::path(folder) / name;
  return {};
}

std::vector<std::string> mpirun_options() {
  if (geteuid() != 0) return {"--oversubscribe", "--bind-to", "none"};
  return {"--oversubscribe", "--bind-to", "none", "--allow-run-as-root"};
}

RunResult run(std::vector<std::string> words, RunOptions options) {
  options.arguments = std::move(words);
  options.environment.try_emplace("OMP_NUM_THREADS", "1");
  options.environment.try_emplace("OMP_WAIT_POLICY", "passive");
  // Containers may forbid reading another process's memory, which Open MPI would report on stderr.
  options.environment.try_emplace("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  // Open MPI does not free all of its memory, so AddressSanitizer must not check for leaks.
  options.environment.try_emplace("LSAN_OPTIONS", "detect_leaks=0");
  return run_program(program("mpirun"), options);
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string no_mpirun() {
  if (program("mpirun").empty()) return "mpirun is not installed (Debian: openmpi-bin)";
  if (!fs::exists(binary_path().parent_path() / "libthimble_mpi.so"))
    return "libthimble_mpi.so is not beside the binary (Debian: install libopenmpi-dev and rebuild)";
  return "";
}

RunResult mpirun(int ranks, RunOptions options, const std::vector<std::string>& first) {
  std::vector<std::string> words = mpirun_options();
  words.insert(words.end(), first.begin(), first.end());
  words.insert(words.end(), {"-n", std::to_string(ranks), binary_path().string()});
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  return run(std::move(words), std::move(options));
}

RunResult mpirun_each(const std::vector<RankArguments>& ranks, RunOptions options) {
  std::vector<std::string> words = mpirun_options();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) words.push_back(":");
    words.insert(words.end(), {"-n", "1", "--wdir", ranks[i].folder.string(), binary_path().string()});
    words.insert(words.end(), ranks[i].arguments.begin(), ranks[i].arguments.end());
  }
  return run(std::move(words), std::move(options));
}

int process_of_rank(int rank, const std::string& mark) {
  const std::string expected = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    int id = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc() || id <= 1) continue;
    if (read_all(entry.path() / "cmdline").find(mark) == std::string::npos) continue;
    const std::string environment = read_all(entry.path() / "environ");
    if (environment.find(expected + '\0') != std::string::npos) return id;
  }
  return 0;
}

}  // namespace thimble
