#include "formats/npz.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/half.h"
#include "base/joined.h"
#include "base/number.h"
#include "formats/architecture.h"
#include "formats/little_endian.h"
#include "formats/problems.h"
#include "formats/zip.h"

namespace thimble {

namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY";
constexpr std::string_view kSuffix = ".npy";
constexpr std::size_t kHeaderMultiple = 64;
constexpr std::uint64_t kMaxArchiveBytes = std::uint64_t{8} << 30;

// The header is a Python dict, always spelled in this way:
// {'descr': '<f4', 'fortran_order': False, 'shape': (512, 512), }
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {}

  void expect(std::string_view word) {
    check(text_.starts_with(word), "{}: expected {} in its header, found {}", what_, word,
          text_.substr(0, 40));
    text_.remove_prefix(word.size());
  }
  std::string_view until(char end) {
    const std::size_t at = text_.find(end);
    check(at != text_.npos, "{}: its header has no {}", what_, end);
    const std::string_view part = text_.substr(0, at);
    text_.remove_prefix(at + 1);
    return part;
  }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
  std::string what_;
};

std::vector<std::int64_t> parse_shape(std::string_view text, const std::string& what) {
  std::vector<std::int64_t> dims;
  std::uint64_t count = 1;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto dim = number_in<std::uint32_t>(text.substr(0, comma));
    check(dim.has_value() && dims.size() < 8, "{}: its shape is ({})", what, text.substr(0, 40));
    dims.push_back(*dim);
    check(*dim == 0 || count <= std::numeric_limits<std::uint32_t>::max() / *dim,
          "{}: its shape is too large", what);
    count *= *dim;
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  return dims;
}

std::string dtype_of(std::string_view descr, const std::string& what) {
  if (descr == "<f4") return "F32";
  if (descr == "<f2") return "F16";
  if (descr == "<V2" || descr == "|V2") return "BF16";
  fail("{}: its elements are '{}', expected <f4, <f2 or V2 (bfloat16)", what, descr);
}

void read_values(std::span<const std::byte> bytes, NamedArray& array) {
  ByteReader reader(bytes, array.name);
  for (float& value : array.values) {
    if (array.dtype == "F32")
      value = reader.number<float>();
    else if (array.dtype == "F16")
      value = to_f32(f16{reader.number<std::uint16_t>()});
    else
      value = to_f32(bf16{reader.number<std::uint16_t>()});
  }
}

NamedArray read_array(std::span<const std::byte> bytes, std::string name, const std::string& what) {
  ByteReader reader(bytes, what);
  check(reader.left() >= kNumpyMagic.size() && reader.text(kNumpyMagic.size()) == kNumpyMagic,
        "{} is no array of numpy", what);
  const auto version = reader.number<std::uint8_t>();
  reader.take(1);
  check(version >= 1 && version <= 3, "{}: version {} of the format is not known", what, version);
  const std::uint64_t header_bytes =
      version == 1 ? reader.number<std::uint16_t>() : reader.number<std::uint32_t>();
  HeaderReader header(reader.text(header_bytes), what);
  header.expect("{'descr': '");
  NamedArray array{
      .name = std::move(name), .dims = {}, .values = {}, .dtype = dtype_of(header.until('\''), what)};
  header.expect(", 'fortran_order': ");
  check(header.until(',') == "False", "{} lies column by column; only C order is read", what);
  header.expect(" 'shape': (");
  array.dims = parse_shape(header.until(')'), what);
  std::uint64_t count = 1;
  for (const std::int64_t dim : array.dims) count *= static_cast<std::uint64_t>(dim);
  const std::uint64_t size = count * (array.dtype == "F32" ? 4 : 2);
  check(reader.left() == size, "{} has {} bytes of values, its shape [{}] needs {}", what, reader.left(),
        joined(array.dims, ", "), size);
  array.values.resize(count);
  read_values(reader.take(size), array);
  return array;
}

std::string npy_header(const std::vector<std::int64_t>& dims) {
  std::string shape;
  for (const std::int64_t dim : dims) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", dim);
  if (dims.size() == 1) shape += ",";
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape);
  const std::size_t before = kNumpyMagic.size() + 4;
  text.append(kHeaderMultiple - (before + text.size() + 1) % kHeaderMultiple, ' ');
  text += '\n';
  std::string header(kNumpyMagic);
  header += std::string("\x01\x00", 2);
  append_number(header, static_cast<std::uint16_t>(text.size()));
  return header + text;
}

}  // namespace

std::vector<NamedArray> read_npz(std::span<const std::byte> bytes, const std::string& name) {
  const ZipFile zip(bytes, name);
  std::vector<NamedArray> arrays;
  for (const ZipEntry& entry : zip.entries()) {
    check(!entry.name.ends_with("/data.pkl"), Hint{"save the state dict as safetensors, or as .npz"},
          "{} is a file of torch.save, of which only the int8 file of train_gpt.py is read", name);
    check(entry.name.ends_with(kSuffix), "{} holds {}, which is no array", name, entry.name);
    std::string array = entry.name.substr(0, entry.name.size() - kSuffix.size());
    arrays.push_back(read_array(zip.read(entry), array, fmt::format("{}: {}", name, array)));
  }
  return arrays;
}

std::string npz_of(const ParamTable& table, std::span<const float> weights) {
  ZipWriter zip;
  for (const Param& param : table.all()) {
    const auto values = std::as_bytes(param.in(weights));
    std::string array = npy_header(param.dims);
    array.append(reinterpret_cast<const char*>(values.data()), values.size());
    zip.add(param.name + std::string(kSuffix), std::as_bytes(std::span(array)));
  }
  return std::move(zip).finish();
}

ModelFile open_npz(const std::filesystem::path& path, const Config& config, std::string_view prefix) {
  const std::string bytes = read_file(path, kMaxArchiveBytes);
  ModelFile out;
  out.path = path;
  out.format = "npz";
  out.architecture = architecture_of(config.model);
  out.config = config;
  std::map<std::string, NamedArray, std::less<>> arrays;
  for (NamedArray& array : read_npz(std::as_bytes(std::span(bytes)), path.string())) {
    out.tensors.push_back(
        {array.name, array.dtype, array.dims, array.values.size() * (array.dtype == "F32" ? 4 : 2)});
    if (array.name.starts_with(prefix)) arrays.emplace(array.name.substr(prefix.size()), std::move(array));
  }
  const ParamTable table(config.model);
  std::vector<std::string> problems;
  for (const Param& param : table.all()) {
    const auto found = arrays.find(param.name);
    if (found == arrays.end())
      problems.push_back(fmt::format("{}{} is missing", prefix, param.name));
    else if (found->second.dims != param.dims)
      problems.push_back(fmt::format("{}{} is [{}], expected [{}]", prefix, param.name,
                                     joined(found->second.dims, ", "), joined(param.dims, ", ")));
  }
  for (const auto& [name, array] : arrays)
    if (!table.find(name)) problems.push_back(fmt::format("{}{} is not part of the model", prefix, name));
  check(problems.empty(), Hint{"the weights and the config do not belong together"}, "{}: {}", path.string(),
        listed(problems));
  out.weights.resize(static_cast<std::size_t>(table.block_size()));
  for (const Param& param : table.all())
    std::ranges::copy(arrays.at(param.name).values, out.weights.begin() + param.offset);
  return out;
}

}  // namespace thimble
