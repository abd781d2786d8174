#include "formats/int8_state.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/files.h"
#include "base/joined.h"
#include "formats/architecture.h"
#include "formats/pickled_arrays.h"
#include "formats/problems.h"
#include "pack/codec.h"
#include "pack/pack_weights.h"

namespace thimble {

namespace {

constexpr std::int64_t kKeptUpTo = 65536;  // elements
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{4} << 30;

using Kind = PickleValue::Kind;

// The pieces of the state that every tensor is looked up in.
class StateReader {
 public:
  StateReader(std::span<const std::byte> bytes, const std::string& name) : name_(name), arrays_(bytes, name) {
    const Pickle& pickle = arrays_.pickle();
    const std::size_t root = pickle.root();
    pickle.expect(root, Kind::dict, "the state");
    const std::size_t* format = pickle.find(root, "__quant_format__");
    check(format && pickle.text(*format, "__quant_format__") == "int8_clean_per_row_v1",
          "{} is no int8_clean_per_row_v1 state of the parameter-golf scripts", name);
    quantized_ = part("quantized");
    scales_ = part("scales");
    dtypes_ = part("dtypes");
    passthrough_ = part("passthrough");
    if (const std::size_t* found = pickle.find(root, "passthrough_orig_dtypes")) originals_ = *found;
  }

  void check_names(const ParamTable& table) const {
    std::vector<std::string> problems;
    const Pickle& pickle = arrays_.pickle();
    for (const Param& param : table.all())
      if (!pickle.find(quantized_, param.name) && !pickle.find(passthrough_, param.name))
        problems.push_back(fmt::format("{} is missing", param.name));
    for (const std::size_t dict : {quantized_, passthrough_}) {
      const auto& items = pickle.at(dict).items;
      for (std::size_t i = 0; i < items.size(); i += 2)
        if (const std::string_view name = pickle.text(items[i], "a tensor's name"); !table.find(name))
          problems.push_back(fmt::format("{} is not part of the model", name.substr(0, 100)));
    }
    check(problems.empty(), Hint{"the weights and the config do not belong together"}, "{}: {}", name_,
          listed(problems));
  }

  PackedTensor tensor(const Param& param) {
    const std::size_t* quantized = arrays_.pickle().find(quantized_, param.name);
    PackedTensor out = quantized ? quantised(param, *quantized) : kept(param);
    const auto finite = [](float value) { return std::isfinite(value); };
    check(std::ranges::all_of(out.floats, finite) && std::ranges::all_of(out.scales, finite),
          "{}: {} holds NaN or infinity", name_, param.name);
    return out;
  }

 private:
  std::size_t part(std::string_view key) const {
    const std::size_t* found = arrays_.pickle().find(arrays_.pickle().root(), key);
    check(found, "{}: {} is missing", name_, key);
    arrays_.pickle().expect(*found, Kind::dict, key);
    return *found;
  }

  DType original(std::size_t dict, const std::string& name) const {
    const std::size_t* found = arrays_.pickle().find(dict, name);
    if (!found) return DType::f32;
    const std::string_view type = arrays_.pickle().text(*found, name);
    check(type == "float32" || type == "bfloat16" || type == "float16", "{}: {} was {} before", name_, name,
          type);
    return type == "bfloat16" ? DType::bf16 : type == "float16" ? DType::f16 : DType::f32;
  }

  PickledArray array(const Param& param, std::size_t value) {
    PickledArray found = arrays_.array(value, param.name);
    check(found.dims == param.dims, "{}: {} is [{}], expected [{}]", name_, param.name,
          joined(found.dims, ", "), joined(param.dims, ", "));
    return found;
  }

  PackedTensor quantised(const Param& param, std::size_t value) {
    const PickledArray q = array(param, value);
    check(q.element == PickledArray::Element::int8, "{}: {} is not of 8-bit integers", name_, param.name);
    const std::size_t* scale = arrays_.pickle().find(scales_, param.name);
    check(scale, "{}: {} has no scale", name_, param.name);
    const PickledArray scales = arrays_.array(*scale, param.name);
    PackedTensor out;
    out.storage = scales.dims.empty() ? Storage::int8_whole : Storage::int8;
    out.restored = original(dtypes_, param.name);
    out.q.resize(q.bytes.size());
    std::ranges::transform(q.bytes, out.q.begin(), [](std::byte b) { return static_cast<std::int8_t>(b); });
    out.scales = scales.floats();
    check(std::cmp_equal(out.scales.size(), scale_count(param, out.storage)),
          "{}: {} has {} scales, expected {}", name_, param.name, out.scales.size(),
          scale_count(param, out.storage));
    return out;
  }

  PackedTensor kept(const Param& param) {
    const PickledArray values = array(param, *arrays_.pickle().find(passthrough_, param.name));
    PackedTensor out;
    out.storage = values.element == PickledArray::Element::f16 ? Storage::f16 : Storage::f32;
    out.restored = originals_ ? original(*originals_, param.name) : DType::f32;
    out.floats = values.floats();
    return out;
  }

  std::string name_;
  ArrayPickle arrays_;
  std::size_t quantized_ = 0, scales_ = 0, dtypes_ = 0, passthrough_ = 0;
  std::optional<std::size_t> originals_;
};

std::vector<std::byte> inflated(std::string_view stored, std::uint64_t most, const std::string& name) {
  constexpr std::size_t kPiece = 1 << 20;
  struct Inflate {
    z_stream z{};
    Inflate() {
      if (inflateInit(&z) != Z_OK) throw std::bad_alloc();
    }
    ~Inflate() { inflateEnd(&z); }
  } state;
  std::vector<std::byte> out;
  int result = Z_OK;
  state.z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));  // zlib only reads it
  state.z.avail_in = static_cast<uInt>(stored.size());
  while (result != Z_STREAM_END) {
    const std::size_t made = out.size();
    check(made < most, "{} unpacks to more than {} bytes, which the model has no need of", name, most);
    out.resize(made + kPiece);
    state.z.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    state.z.avail_out = kPiece;
    result = inflate(&state.z, Z_NO_FLUSH);
    check(result == Z_OK || result == Z_STREAM_END, "{} is no zlib data, or it is damaged", name);
    out.erase(out.end() - static_cast<std::ptrdiff_t>(state.z.avail_out), out.end());
  }
  check(state.z.avail_in == 0, "{}: {} bytes follow the zlib data", name, state.z.avail_in);
  return out;
}

}  // namespace

std::vector<PackedTensor> read_int8_state(std::span<const std::byte> bytes, const std::string& name,
                                          const ParamTable& table) {
  StateReader reader(bytes, name);
  reader.check_names(table);
  std::vector<PackedTensor> tensors;
  for (const Param& param : table.all()) tensors.push_back(reader.tensor(param));
  return tensors;
}

std::string int8_ptz(std::string_view state) {
  const auto bytes = compress(std::as_bytes(std::span(state)), Codec::zlib);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<PackedTensor> open_int8_ptz(const std::filesystem::path& path, const ParamTable& table) {
  constexpr std::uint64_t kMostPerTensor = 1 << 16;  // names, types, the zip's padding
  const std::string stored = read_file(path, kMaxFileBytes - 1);
  const std::uint64_t most =
      4 * static_cast<std::uint64_t>(table.count()) + kMostPerTensor * (table.all().size() + 1);
  const auto bytes = inflated(stored, most, path.string());
  return read_int8_state(bytes, path.string(), table);
}

ModelFile open_int8_state(const std::filesystem::path& path, const Config& config) {
  const ParamTable table(config.model);
  const std::vector<PackedTensor> tensors = open_int8_ptz(path, table);
  ModelFile out;
  out.path = path;
  out.format = "int8.ptz";
  out.architecture = architecture_of(config.model);
  out.config = config;
  out.weights = unpack_weights(table, tensors);
  const auto params = table.all();
  for (std::size_t i = 0; i < params.size(); ++i)
    out.tensors.push_back({params[i].name, std::string(name_of(tensors[i].storage)), params[i].dims,
                           static_cast<std::uint64_t>(payload_bytes(params[i], tensors[i].storage))});
  return out;
}

std::vector<PackedTensor> quantise_int8_state(const ParamTable& table, std::span<const float> weights,
                                              std::span<const std::string> keep_f32, Int8Stats& stats) {
  std::vector<PackedTensor> tensors;
  for (const Param& param : table.all()) {
    const bool in_f32 = std::ranges::any_of(
        keep_f32, [&](const std::string& part) { return param.name.find(part) != std::string::npos; });
    const Storage storage = param.count() > kKeptUpTo
                                ? (param.dims.size() == 2 ? Storage::int8 : Storage::int8_whole)
                                : (in_f32 ? Storage::f32 : Storage::f16);
    const DType held = param.role == Role::token_embedding ? DType::bf16 : DType::f32;
    tensors.push_back(pack_tensor(param, param.in(weights), storage, QuantiseRule{.bits = 8}, held));
    stats.payload_bytes += static_cast<std::uint64_t>(payload_bytes(param, tensors.back().storage));
    stats.float_bytes += static_cast<std::uint64_t>(param.count() * dtype_bytes(held));
  }
  return tensors;
}

}  // namespace thimble
