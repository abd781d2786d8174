// The entry point of libFuzzer. One program contains all targets and selects one by the name it is
// called by, because linking twelve programs would take longer than running them.
#include <errno.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "targets.h"

namespace {

using namespace thimble;

constexpr std::string_view kSuffix = "_fuzz";

const FuzzTarget& called_by(std::string_view program) {
  if (program.ends_with(kSuffix)) program.remove_suffix(kSuffix.size());
  const FuzzTarget* target = find_fuzz_target(program);
  if (target) return *target;
  std::fprintf(stderr, "call this program by the name of a target:");
  for (const FuzzTarget& known : fuzz_targets())
    std::fprintf(stderr, " %s_fuzz", std::string(known.name).c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FuzzTarget& target = called_by(program_invocation_short_name);
  target.run(std::as_bytes(std::span(data, size)));
  return 0;
}
