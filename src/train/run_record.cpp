#include "train/run_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "base/error.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/version.h"

namespace thimble {

namespace {

constexpr std::uint64_t kMaxRecordBytes = 1 << 24;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

Json earlier_calls(const std::filesystem::path& path) {
  try {
    return parse_json(read_file(path, kMaxRecordBytes), path.string()).at("calls");
  } catch (const Error&) {
    return Json::array();  // none, or one that a kill or a hand damaged: not worth a run
  }
}

Json machine_record() {
  const Machine machine = probe_machine();
  return Json::object()
      .set("name", host_name())
      .set("cpu", machine.cpu_model)
      .set("cpu_level", std::string(cpu_level_name(cpu_level())))
      .set("threads", max_threads())
      .set("memory_bytes", machine.memory_bytes);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), size};
}

Json run_record(const std::filesystem::path& path, const RunCall& call) {
  Json calls = Json::array();
  const Json earlier = earlier_calls(path);
  for (const Json& old : earlier.as_array()) calls.push(old);
  calls.push(Json::object()
                 .set("started", call.started)
                 .set("finished", call.finished)
                 .set("first_step", call.first_step)
                 .set("last_step", call.last_step)
                 .set("status", call.status)
                 .set("seconds", call.seconds)
                 .set("tokens_per_second", call.tokens_per_second)
                 .set("host", machine_record())
                 .set("version", version())
                 .set("build", build_type())
                 .set("compiler", compiler()));
  return Json::object().set("status", call.status).set("steps", call.last_step).set("calls", calls);
}

std::string machine_note(const std::filesystem::path& path) {
  const Json calls = earlier_calls(path);
  if (calls.size() == 0) return "";
  const Json& host = calls.as_array().back().at("host");
  const Json *level = host.find("cpu_level"), *threads = host.find("threads");
  if (!level || !threads) return "";
  const auto text = [](std::int64_t count, std::string_view level) {
    return fmt::format("{} thread{} at CPU level {}", count, count == 1 ? "" : "s", level);
  };
  const std::string before = text(threads->as_int(), level->as_string());
  const std::string now = text(max_threads(), cpu_level_name(cpu_level()));
  if (before == now) return "";
  return fmt::format(
      "this run was trained with {}, and goes on with {}: the last bits of its results will differ", before,
      now);
}

}  // namespace thimble
