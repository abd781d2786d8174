// The parts of the engine that the browser does without, in the smallest form that links: the
// processor has one level, matrix products use our own kernels, and there is no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "config/toml.h"
#include "ops/cpu/gemm.h"
#include "ops/kernel_choice.h"
#include "ops/sums.h"
#include "ops/table.h"
#include "tensor/arena.h"

namespace thimble {

// The presets of src/config: a file contains its whole config.
std::span<const std::pair<std::string_view, std::string_view>> embedded_presets();
std::span<const std::pair<std::string_view, std::string_view>> embedded_presets() {
  return {};
}

// base/machine.cpp

std::string_view cpu_level_name(CpuLevel) {
  return "wasm";
}
CpuLevel detected_cpu_level() {
  return CpuLevel::scalar;
}
CpuLevel cpu_level() {
  return CpuLevel::scalar;
}
CpuFeatures cpu_features() {
  return {};
}
Machine probe_machine(const std::filesystem::path&) {
  Machine machine;
  machine.cpu_model = "WebAssembly";
  machine.logical_cpus = machine.affinity_cpus = 1;
  machine.memory_bytes = machine.available_bytes = std::int64_t{4} << 30;
  return machine;
}
std::string_view version() {
  return THIMBLE_VERSION;
}
std::string_view build_type() {
  return "Release";
}
std::string compiler() {
  return "clang " __clang_version__;
}

// config/toml_read.cpp: only the text that to_toml() writes.

std::vector<Setting> parse_settings(std::string_view toml, std::string_view name) {
  std::vector<Setting> settings;
  for (std::uint32_t line = 1; !toml.empty(); ++line) {
    const std::size_t end = std::min(toml.find('\n'), toml.size());
    const std::string_view text = trim(toml.substr(0, end));
    toml.remove_prefix(std::min(end + 1, toml.size()));
    if (text.empty() || text.starts_with('#')) continue;
    const std::size_t equals = std::min(text.find('='), text.size() - 1);
    const std::string_view value = trim(text.substr(equals + 1));
    Setting& setting = settings.emplace_back(Setting{std::string(trim(text.substr(0, equals))), {}, line});
    if (value == "true" || value == "false")
      setting.value = value == "true";
    else if (const auto whole = parse_number<std::int64_t>(value))
      setting.value = *whole;
    else if (const auto real = parse_number<double>(value))
      setting.value = *real;
    else if (value.size() >= 2 && value.starts_with('"') &&
             value.find_first_of("\"\\", 1) == value.size() - 1)
      setting.value = std::string(value.substr(1, value.size() - 2));
    else
      fail("{}:{}: expected a number, true, false or \"text\" as {}", name, line, setting.key.substr(0, 80));
  }
  return settings;
}

// base/mapped_file.cpp: a page has no files, so nothing is ever mapped.

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  throw Error(fmt::format("cannot map {} in a browser", path.string()));
}
MappedFile::~MappedFile() = default;
void MappedFile::check_intact() const {}

// ops/kernel_choice.cpp and ops/cuda_plugin.cpp

void apply_cpu_level() {}

const Backend& cuda_backend() {
  fail("[device] the browser's runtime has no CUDA");
}

// ops/cpu/gemm.cpp

namespace cpu {

struct Gemm::State {
  Arena workspace;
};

Gemm::Gemm() : state_(std::make_unique<State>()) {}
Gemm::~Gemm() = default;

void Gemm::run(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias) {
  const std::int64_t bytes = packed_gemm_bytes(c.rows, c.cols, a.cols(), c.dtype);
  if (bytes > state_->workspace.bytes())
    state_->workspace = Arena(bytes, "matrix products", "use a smaller model");
  packed_gemm(a, b, c, add, bias, state_->workspace.at(0));
}

// ops/cpu/sums.cpp: Highway 1.0.3 has no f64 vectors for WebAssembly, and only training needs
// speed.

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

double weighted_sum(std::span<const float> values, std::span<const float> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += double{values[i]} * double{weights[i]};
  return sum;
}

}  // namespace cpu

}  // namespace thimble

// In libc++ 16, but not in emscripten's compiled libc++ 13.
std::to_chars_result std::to_chars(char* begin, char* end, double value) {
  const auto [at, size] = fmt::format_to_n(begin, end - begin, "{}", value);
  if (static_cast<std::ptrdiff_t>(size) > end - begin) return {end, std::errc::value_too_large};
  return {at, std::errc{}};
}
