#include "formats/state_dict.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "formats/problems.h"

namespace thimble {

void read_state_dict(const SafetensorsFile& file, const ParamTable& table, std::string_view prefix,
                     std::span<float> block, const std::function<bool(std::string_view name)>& ignore) {
  check(static_cast<std::int64_t>(block.size()) == table.block_size(),
        "[state dict] a block of {} for a table of {}", block.size(), table.block_size());
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> known;
  for (const Param& param : table.all()) {
    const std::string name = fmt::format("{}{}", prefix, param.name);
    known.insert(name);
    const SafetensorsEntry* entry = file.find(name);
    if (!entry) {
      problems.push_back(fmt::format("{} is missing", name));
    } else if (entry->dims != param.dims) {
      problems.push_back(fmt::format("{} is [{}], expected [{}]", name, joined(entry->dims, ", "),
                                     joined(param.dims, ", ")));
    }
  }
  for (const SafetensorsEntry& entry : file.entries())
    if (!known.contains(entry.name) && !(ignore && ignore(entry.name)))
      problems.push_back(fmt::format("{} is not part of the model", entry.name));
  check(problems.empty(), Hint{"the weights and the config do not belong together"}, "{}: {}", file.name(),
        listed(problems));
  for (const Param& param : table.all())
    file.read_f32(fmt::format("{}{}", prefix, param.name), param.in(block));
}

void add_state_dict(SafetensorsWriter& writer, const ParamTable& table, std::string_view prefix,
                    std::span<const float> block) {
  for (const Param& param : table.all())
    writer.add(fmt::format("{}{}", prefix, param.name), DType::f32, param.dims,
               std::as_bytes(param.in(block)));
}

}  // namespace thimble
