// Counts the instructions of the main kernels, which do not depend on the load of the machine.
//
//   instructions_bench [--only NAME]
//
// Virtual machines have no performance counters and valgrind does not support AVX-512, so a parent
// process single-steps a child (ptrace) and counts its instructions. Instructions between the entry
// of a kernel of the op table and its return are attributed to that op. One thread; about fifty
// thousand steps per second.
//
// training: forward and backward of 64 rows through one block of 128 (2 heads over 1, T = 64) and
// its head. decoding: one token of a block of 256 (4 heads over 2) after 32 others. FLOPs or bytes
// per instruction show the efficiency; at these small sizes, much of the count is outside the inner
// loops. The table is the one in docs/benchmarks.md; `bench/instructions` compares the two.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "base/parallel.h"
#include "base/table.h"
#include "config/builder.h"
#include "graph/op.h"
#include "model/model.h"
#include "ops/table.h"
#include "optim/adam.h"

namespace thimble {

namespace {

// Two counters per op, forward and backward, and one for everything else.
constexpr std::size_t kMaxOps = 64, kOutside = 2 * kMaxOps, kCounters = kOutside + 1;

// Memory shared by both: the child sets `counting`, the parent counts.
struct Shared {
  volatile bool counting;
  std::uint64_t instructions[kCounters];
};

Shared& map_shared() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "cannot map shared memory");
  return *new (memory) Shared{};
}

std::unordered_map<std::uint64_t, std::size_t> kernel_entries() {
  std::unordered_map<std::uint64_t, std::size_t> entries;
  check(all_ops().size() <= kMaxOps, "expected at most {} ops, found {}", kMaxOps, all_ops().size());
  for (std::size_t i = 0; i < all_ops().size(); ++i) {
    const Kernels& kernels = *cpu_backend().find(*all_ops()[i]);
    const std::size_t at = 2 * i;
    entries[reinterpret_cast<std::uint64_t>(kernels.forward)] = at;
    entries[reinterpret_cast<std::uint64_t>(kernels.backward)] = at + 1;
  }
  entries.erase(0);
  return entries;
}

// The parent: single-steps the child while it counts. Returns the exit code of the child.
int step_child(pid_t child, Shared& shared) {
  const auto entries = kernel_entries();
  std::size_t counter = kOutside;
  std::uint64_t stack = 0;  // stack pointer at the entry of the running kernel
  int status = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    const int signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    if (!shared.counting || signal != 0) {
      ptrace(PTRACE_CONT, child, nullptr, signal);
      continue;
    }
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    if (counter != kOutside && registers.rsp > stack) counter = kOutside;
    if (counter == kOutside)
      if (const auto entered = entries.find(registers.rip); entered != entries.end())
        counter = entered->second, stack = registers.rsp;
    ++shared.instructions[counter];
    ptrace(PTRACE_SINGLESTEP, child, nullptr, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// The child: instructions of `work`, by counter.
std::vector<std::uint64_t> count(Shared& shared, const std::function<void()>& work) {
  std::ranges::fill(shared.instructions, std::uint64_t{0});
  shared.counting = true;
  raise(SIGTRAP);
  work();
  shared.counting = false;
  return {std::begin(shared.instructions), std::end(shared.instructions)};
}

ModelConfig config_of(const char* preset, std::initializer_list<const char*> assignments) {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* assignment : assignments) settings.set(assignment);
  return settings.resolve().model;
}

class Report {
 public:
  explicit Report(Shared& shared) : shared_(shared) {}

  // `profile` has the work of each op. `only`: report only this op; the others do not differ.
  void ops(const std::string& part, const std::function<void()>& work, const Profile& profile,
           std::string_view only = {}) {
    const std::vector<std::uint64_t> counted = count(shared_, work);
    for (const auto& [key, time] : profile.times()) {
      if (!only.empty() && key.first != only) continue;
      const auto op = std::ranges::find(all_ops(), key.first, &OpDefinition::name) - all_ops().begin();
      const std::size_t at = 2 * static_cast<std::size_t>(op) + (key.second == Phase::backward);
      row(part, fmt::format("{}{}", key.first, at % 2 == 1 ? ", backward" : ""), counted[at], time.work,
          time.calls);
    }
    if (only.empty()) row(part, "around the ops", counted[kOutside], {}, 0);
  }

  void total(const std::string& part, const std::string& name, const std::function<void()>& work,
             const Work& amount) {
    const std::vector<std::uint64_t> counted = count(shared_, work);
    std::uint64_t sum = 0;
    for (const std::uint64_t instructions : counted) sum += instructions;
    row(part, name, sum, amount, 1);
  }

  const std::string& text() const { return text_; }

 private:
  void row(const std::string& part, const std::string& name, std::uint64_t instructions, const Work& work,
           std::int64_t calls) {
    if (instructions == 0) return;
    const auto each = [&](double amount) {
      return amount > 0 ? fmt::format("{:.1f}", amount / static_cast<double>(instructions)) : std::string();
    };
    text_ += fmt::format(
        "| {} | {} | {} | {} | {} | {} |\n", part, name, calls > 0 ? fmt::format("{}", calls) : "",
        with_commas(static_cast<std::int64_t>(instructions)), each(work.flops), each(work.bytes));
  }

  Shared& shared_;
  std::string text_ =
      "| part | kernel | calls | instructions | FLOPs each | bytes each |\n|---|---|---|---|---|---|\n";
};

void count_training(const char* preset, DType dtype, const Context& context, Report& report) {
  constexpr std::int64_t kRows = 64;
  const ModelConfig config =
      config_of(preset, {"layers=1", "dim=128", "heads=2", "kv_heads=1", "vocab_size=256", "mlp_hidden=256",
                         "context=64", "unet_skips=false"});
  Model model(config, context, dtype);
  initialize(model.params(), 1, model.weights());
  model.weights_changed();
  std::vector<std::int32_t> tokens(kRows), targets(kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    tokens[i] = static_cast<std::int32_t>(i * 37 % 256);
    targets[i] = static_cast<std::int32_t>((i + 1) * 37 % 256);
  }
  const Rows rows = grid_rows(config, config.context, tokens, targets);
  std::vector<float> gradients(model.weights().size());
  const auto work = [&] { model.add_gradients(rows, gradients, {}); };
  work();  // records programs and plans
  Profile profile;
  model.set_profile(&profile);
  work();
  model.set_profile(nullptr);
  report.ops(fmt::format("{}, {}", preset, dtype_name(dtype)), work, profile);
}

void count_decoding(WeightFormat format, const char* name, DType dtype, const Context& context,
                    Report& report) {
  constexpr std::int64_t kBehind = 32;
  const ModelConfig config = config_of("llama", {"layers=1", "dim=256", "heads=4", "kv_heads=2",
                                                 "vocab_size=512", "mlp_hidden=512", "context=64"});
  const ParamTable table(config);
  Model model(config, context, dtype,
              std::make_shared<StoredWeights>(table, std::vector(table.all().size(), format)));
  KvCache cache(config, 1, dtype);
  const auto decode = [&](std::int64_t position) {
    const std::vector<DecodeRow> rows = {{.token = 1,
                                          .previous = position > 0 ? 2 : -1,
                                          .before_previous = position > 1 ? 3 : -1,
                                          .position = static_cast<std::int32_t>(position),
                                          .slot = 0}};
    model.decode(decode_rows(config, 1, rows), cache);
  };
  for (std::int64_t position = 0; position < kBehind; ++position) decode(position);
  Profile profile;
  model.set_profile(&profile);
  decode(kBehind);
  model.set_profile(nullptr);
  const bool floats = format == WeightFormat::bf16;
  report.ops(
      fmt::format("decode, {}", name), [&] { decode(kBehind); }, profile, floats ? "" : "linear");
}

void count_adam(Report& report) {
  constexpr std::size_t kWeights = 16384;
  std::vector<float> p(kWeights, 1), g = p, m = p, v = p;
  const auto work = [&] { cpu::adam({.lr = 1e-3f}, p, g, m, v); };
  work();
  report.total("optimizer", "adam, 16,384 weights", work, {.flops = 0, .bytes = 7.0 * 4 * kWeights});
}

void work_in_child(Shared& shared, const std::string& only) {
  set_threads(1);
  const Context context;
  const DType dtype = compute_dtype(ComputeDType::automatic, Device::cpu);
  Report report(shared);
  const auto selected = [&](std::string_view name) { return name.find(only) != name.npos; };
  if (selected("golf")) count_training("golf", dtype, context, report);
  if (selected("llama")) count_training("llama", dtype, context, report);
  if (selected("decode bf16")) count_decoding(WeightFormat::bf16, "bf16", dtype, context, report);
  if (selected("decode int8")) count_decoding(WeightFormat::int8_rows, "int8", dtype, context, report);
  if (selected("adam")) count_adam(report);
  fmt::print("{}", report.text());
  std::fflush(stdout);
}

int run(const std::string& only) {
  Shared& shared = map_shared();
  const pid_t child = fork();  // before anything has started a thread
  check(child >= 0, "cannot start a child process");
  if (child > 0) return step_child(child, shared);
  check(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0, Hint{"allow ptrace, e.g. --cap-add=SYS_PTRACE"},
        "this process may not be traced");
  work_in_child(shared, only);
  return 0;
}

}  // namespace

}  // namespace thimble

int main(int argc, char** argv) {
  try {
    thimble::check(argc == 1 || (argc == 3 && std::string_view(argv[1]) == "--only"),
                   "usage: instructions_bench [--only NAME]");
    return thimble::run(argc == 3 ? argv[2] : "");
  } catch (const thimble::Error& error) {
    fmt::print(stderr, "{}\n", thimble::describe(error));
    return 1;
  }
}
