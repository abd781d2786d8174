#include "formats/weight_sources.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "base/joined.h"
#include "formats/problems.h"

namespace thimble {

namespace {

std::vector<std::string> problems_of(const TensorFiles& files, std::span<const WeightSource> sources,
                                     const std::function<bool(std::string_view)>& ignore) {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> known;
  for (const WeightSource& source : sources) {
    if (source.name.empty() || !known.insert(source.name).second) continue;
    const SafetensorsEntry* entry = files.find(source.name);
    if (!entry)
      problems.push_back(fmt::format("{} is missing", source.name));
    else if (entry->dims != source.dims)
      problems.push_back(fmt::format("{} is [{}], expected [{}]", source.name, joined(entry->dims, ", "),
                                     joined(source.dims, ", ")));
  }
  for (const SafetensorsFile& file : files.files())
    for (const SafetensorsEntry& entry : file.entries())
      if (!known.contains(entry.name) && !ignore(entry.name))
        problems.push_back(fmt::format("{} is not part of the model", entry.name));
  return problems;
}

void copy_out(std::span<const float> from, const WeightSource& source, const Param& param,
              std::span<float> to) {
  if (!source.transposed) {
    const std::int64_t begin = source.first * (param.dims.size() == 2 ? param.cols : 1);
    std::ranges::copy(from.subspan(index_of(begin), to.size()), to.begin());
    return;
  }
  const std::int64_t stride = source.dims.back();
  for (std::int64_t row = 0; row < param.rows; ++row)
    for (std::int64_t column = 0; column < param.cols; ++column)
      to[index_of(row * param.cols + column)] = from[index_of(column * stride + source.first + row)];
}

}  // namespace

void TensorFiles::add(SafetensorsFile file) {
  files_.push_back(std::move(file));
  for (const SafetensorsEntry& entry : files_.back().entries()) {
    const auto [place, fresh] = places_.try_emplace(entry.name, Place{files_.size() - 1, &entry});
    check(fresh, "{}: tensor {} is in {} too", files_.back().name(), entry.name,
          files_[place->second.file].name());
  }
}

const SafetensorsEntry* TensorFiles::find(std::string_view tensor) const {
  const auto found = places_.find(tensor);
  return found == places_.end() ? nullptr : found->second.entry;
}

void TensorFiles::read_f32(std::string_view tensor, std::span<float> values) const {
  const auto found = places_.find(tensor);
  check(found != places_.end(), "{}: expected a tensor {}, found none", name_, tensor);
  files_[found->second.file].read_f32(tensor, values);
}

std::vector<WeightSource> sources_by_name(const ParamTable& table, std::string_view prefix) {
  std::vector<WeightSource> sources;
  for (const Param& param : table.all())
    sources.push_back({.name = fmt::format("{}{}", prefix, param.name), .dims = param.dims});
  return sources;
}

std::vector<float> read_weights(const TensorFiles& files, const ParamTable& table,
                                std::span<const WeightSource> sources,
                                const std::function<bool(std::string_view)>& ignore) {
  const auto params = table.all();
  check(sources.size() == params.size(), "[weights] {} sources for {} tensors", sources.size(),
        params.size());
  const std::vector<std::string> problems = problems_of(files, sources, ignore);
  check(problems.empty(), Hint{"the weights and the config do not belong together"}, "{}: {}", files.name(),
        listed(problems));
  std::vector<float> block(index_of(table.block_size())), whole;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (sources[i].name.empty()) continue;
    whole.resize(index_of(files.find(sources[i].name)->count()));
    files.read_f32(sources[i].name, whole);
    copy_out(whole, sources[i], params[i], params[i].in(std::span(block)));
  }
  return block;
}

}  // namespace thimble
