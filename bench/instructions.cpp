// How many instructions the main kernels take: a measure that does not depend on what else the machine does.
//
//   instructions_bench [--only NAME]
//
// Virtual machines have no counters and valgrind knows no AVX-512, so they are counted one by one: a child works, its
// parent lets it make single steps (ptrace) and looks where it stands. What runs between the entry of a kernel of the op
// table and its return belongs to that op. One thread; some fifty thousand steps a second.
//
// training: forward and backward of 64 rows through one block of 128 (2 heads over 1, T = 64) and its head. decoding: one
// token of a block of 256 (4 heads over 2) behind 32 others. FLOPs or bytes for each instruction say how much one does;
// small as the sizes are, a good part is what surrounds the loops. The table is that of docs/benchmarks.md;
// `bench/instructions` compares the two.
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
#include <optional>
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

constexpr std::size_t kPlaces = 2 * kOps + 1;  // forward and backward of each op, and what is around them
constexpr std::size_t kAround = 2 * kOps;

// Memory of both: the child says when its steps count, the parent writes what it counted.
struct Shared {
  volatile bool counting;
  std::uint64_t instructions[kPlaces];
};

Shared& share() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "no memory to share");
  return *new (memory) Shared{};
}

std::unordered_map<std::uint64_t, std::size_t> kernel_entries() {
  std::unordered_map<std::uint64_t, std::size_t> entries;
  for (const OpDefinition* op : all_ops()) {
    const OpDefinition& def = *op;
    const Kernels& kernels = *cpu_backend().find(def);
    const auto at = 2 * static_cast<std::size_t>(&def);
    entries[reinterpret_cast<std::uint64_t>(kernels.forward)] = at;
    entries[reinterpret_cast<std::uint64_t>(kernels.backward)] = at + 1;
  }
  entries.erase(0);
  return entries;
}

// The parent: steps the child while it counts, lets it run while it does not. The child's exit code.
int step_child(pid_t child, Shared& shared) {
  const auto entries = kernel_entries();
  std::size_t place = kAround;
  std::uint64_t stack = 0;  // of the kernel that runs, when it was entered
  int status = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    const int signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    if (!shared.counting || signal != 0) {
      ptrace(PTRACE_CONT, child, nullptr, signal);
      continue;
    }
    user_regs_struct registers{};
    ptrace(PTRACE_GETREGS, child, nullptr, &registers);
    if (place != kAround && registers.rsp > stack) place = kAround;
    if (place == kAround)
      if (const auto entered = entries.find(registers.rip); entered != entries.end())
        place = entered->second, stack = registers.rsp;
    ++shared.instructions[place];
    ptrace(PTRACE_SINGLESTEP, child, nullptr, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// The child's side: what `work` takes, by place.
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

  // `profile` says how much each op has to do in it. `only`: one op alone, where the others are as in another part.
  void ops(const std::string& part, const std::function<void()>& work, const Profile& profile,
           std::optional<Op> only = {}) {
    const std::vector<std::uint64_t> counted = count(shared_, work);
    for (const auto& [key, time] : profile.times()) {
      if (only && key.first != *only) continue;
      const std::size_t at = 2 * static_cast<std::size_t>(key.first) + (key.second == Phase::backward);
      row(part, fmt::format("{}{}", key.first->name, at % 2 == 1 ? ", backward" : ""), counted[at], time.work,
          time.calls);
    }
    if (!only) row(part, "around the ops", counted[kAround], {}, 0);
  }

  void whole(const std::string& part, const std::string& name, const std::function<void()>& work,
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
  initialise(model.params(), 1, model.weights());
  model.weights_changed();
  std::vector<std::int32_t> tokens(kRows), targets(kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    tokens[i] = static_cast<std::int32_t>(i * 37 % 256);
    targets[i] = static_cast<std::int32_t>((i + 1) * 37 % 256);
  }
  const Rows rows = grid_rows(config, config.context, tokens, targets);
  std::vector<float> gradients(model.weights().size());
  const auto work = [&] { model.add_gradients(rows, gradients, {}); };
  work();  // makes programs and plans
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
      fmt::format("decode, {}", name), [&] { decode(kBehind); }, profile,
      floats ? std::nullopt : std::optional(&op::kLinear));
}

void count_adam(Report& report) {
  constexpr std::size_t kWeights = 16384;
  std::vector<float> p(kWeights, 1), g = p, m = p, v = p;
  const auto work = [&] { cpu::adam({.lr = 1e-3f}, p, g, m, v); };
  work();
  report.whole("optimizer", "adam, 16,384 weights", work, {.flops = 0, .bytes = 7.0 * 4 * kWeights});
}

void work_in_child(Shared& shared, const std::string& only) {
  set_threads(1);
  const Context context;
  const DType dtype = compute_dtype(ComputeDType::automatic, Device::cpu);
  Report report(shared);
  const auto wanted = [&](std::string_view name) { return name.find(only) != name.npos; };
  if (wanted("golf")) count_training("golf", dtype, context, report);
  if (wanted("llama")) count_training("llama", dtype, context, report);
  if (wanted("decode bf16")) count_decoding(WeightFormat::bf16, "bf16", dtype, context, report);
  if (wanted("decode int8")) count_decoding(WeightFormat::int8_rows, "int8", dtype, context, report);
  if (wanted("decode Q8_0")) count_decoding(WeightFormat::int8_blocks, "Q8_0", dtype, context, report);
  if (wanted("adam")) count_adam(report);
  fmt::print("{}", report.text());
  std::fflush(stdout);
}

int run(const std::string& only) {
  Shared& shared = share();
  const pid_t child = fork();  // before anything has started a thread
  check(child >= 0, "cannot start a child");
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
