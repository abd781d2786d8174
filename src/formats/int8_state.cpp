#include "formats/int8_state.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "formats/model_file.h"
#include "formats/npz.h"
#include "formats/pickle.h"
#include "pack/pack_weights.h"
#include "tensor/tensor.h"

namespace thimble {

namespace {

constexpr std::int64_t kKeptUpTo = 65536;  // elements
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{4} << 30;

using Kind = PickleValue::Kind;

// Looks up the tensors of a state in its dicts.
class StateReader {
 public:
  StateReader(std::span<const std::byte> bytes, const std::string& name) : name_(name), arrays_(bytes, name) {
    const Pickle& pickle = arrays_.pickle();
    const std::size_t root = pickle.root();
    pickle.expect(root, Kind::dict, "the state");
    const std::size_t* format = pickle.find(root, "__quant_format__");
    check(format && pickle.text(*format, "__quant_format__") == "int8_clean_per_row_v1",
          "{} is not an int8_clean_per_row_v1 state of the parameter-golf scripts", name);
    quantized_ = part("quantized");
    scales_ = part("scales");
    dtypes_ = part("dtypes");
    passthrough_ = part("passthrough");
    if (const std::size_t* found = pickle.find(root, "passthrough_orig_dtypes")) originals_ = *found;
  }

  void check_names(const ParamTable& table) {
    std::vector<std::string> problems;
    const Pickle& pickle = arrays_.pickle();
    for (const Param& param : table.all())
      if (!pickle.find(quantized_, param.name) && !pickle.find(passthrough_, param.name))
        problems.push_back(fmt::format("{} is missing", param.name));
    for (const std::size_t dict : {quantized_, passthrough_}) {
      const auto& items = pickle.at(dict).items;
      for (std::size_t i = 0; i < items.size(); i += 2)
        if (const std::string_view name = pickle.text(items[i], "a tensor's name");
            !table.find(name) &&
            !is_empty_skip_weights(name, arrays_.array(items[i + 1], "skip_weights").dims))
          problems.push_back(fmt::format("{} is not part of the model", name.substr(0, 100)));
    }
    check(problems.empty(), Hint{"pass the config that the weights were trained with"}, "{}: {}", name_,
          listed(problems));
  }

  PackedTensor tensor(const Param& param) {
    const std::size_t* found = arrays_.pickle().find(quantized_, param.name);
    PackedTensor out = found ? quantized(param, *found) : kept(param);
    const auto finite = [](float value) { return std::isfinite(value); };
    check(std::ranges::all_of(out.floats, finite) && std::ranges::all_of(out.scales, finite),
          "{}: {} contains NaN or infinity", name_, param.name);
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
    check(type == "float32" || type == "bfloat16" || type == "float16",
          "{}: {}: expected an original type float32, bfloat16 or float16, found {}", name_, name, type);
    return type == "bfloat16" ? DType::bf16 : type == "float16" ? DType::f16 : DType::f32;
  }

  PickledArray array(const Param& param, std::size_t value) {
    PickledArray found = arrays_.array(value, param.name);
    check(found.dims == param.dims, "{}: {} is [{}], expected [{}]", name_, param.name,
          joined(found.dims, ", "), joined(param.dims, ", "));
    return found;
  }

  PackedTensor quantized(const Param& param, std::size_t value) {
    const PickledArray q = array(param, value);
    check(q.element == PickledArray::Element::int8, "{}: {}: expected 8-bit integers", name_, param.name);
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
          "{}: {}: found {} scales, expected {}", name_, param.name, out.scales.size(),
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

std::vector<std::byte> inflated(std::string_view stored, std::uint64_t max_bytes, const std::string& name) {
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
    check(made < max_bytes, "{} decompresses to more than {} bytes, the most that this model can need", name,
          max_bytes);
    out.resize(made + kPiece);
    state.z.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    state.z.avail_out = kPiece;
    result = inflate(&state.z, Z_NO_FLUSH);
    check(result == Z_OK || result == Z_STREAM_END, "{} is not zlib data, or is damaged", name);
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
  // As Python's zlib.compress(state, 9): the default memory level of 8, where an artifact has 9.
  uLongf size = compressBound(state.size());
  std::string bytes(size, '\0');
  const int result =
      compress2(reinterpret_cast<Bytef*>(bytes.data()), &size, reinterpret_cast<const Bytef*>(state.data()),
                state.size(), Z_BEST_COMPRESSION);
  check(result == Z_OK, "[zlib] compress2 returned {}", result);
  bytes.resize(size);
  return bytes;
}

std::vector<PackedTensor> open_int8_ptz(const std::filesystem::path& path, const ParamTable& table) {
  constexpr std::uint64_t kMaxExtraPerTensor = 1 << 16;  // names, types, padding of the zip
  const std::string stored = read_file(path, kMaxFileBytes - 1);
  const std::uint64_t max_bytes =
      4 * static_cast<std::uint64_t>(table.count()) + kMaxExtraPerTensor * (table.all().size() + 1);
  const auto bytes = inflated(stored, max_bytes, path.string());
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

std::vector<PackedTensor> quantize_int8_state(const ParamTable& table, std::span<const float> weights,
                                              std::span<const std::string> keep_f32, Int8Stats& stats) {
  std::vector<PackedTensor> tensors;
  for (const Param& param : table.all()) {
    const bool in_f32 = std::ranges::any_of(
        keep_f32, [&](const std::string& part) { return param.name.find(part) != std::string::npos; });
    const Storage storage = param.count() > kKeptUpTo
                                ? (param.dims.size() == 2 ? Storage::int8 : Storage::int8_whole)
                                : (in_f32 ? Storage::f32 : Storage::f16);
    const DType source_type = param.role == Role::token_embedding ? DType::bf16 : DType::f32;
    tensors.push_back(pack_tensor(param, param.in(weights), storage, QuantizeRule{.bits = 8}, source_type));
    stats.payload_bytes += static_cast<std::uint64_t>(payload_bytes(param, tensors.back().storage));
    stats.float_bytes += static_cast<std::uint64_t>(param.count() * dtype_bytes(source_type));
  }
  return tensors;
}

namespace {

enum class StateElement : std::uint8_t { int8, f16, f32 };

template <class T>
std::string bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::string half_bytes(std::span<const float> values) {
  std::string bytes;
  for (const float value : values) append_number(bytes, to_f16(value).bits);
  return bytes;
}

using Dims = std::span<const std::int64_t>;

// Writes arrays in the format of numpy or torch. The other parts of the pickle are common to both.
class ArrayPickler {
 public:
  explicit ArrayPickler(std::uint8_t protocol) : pickle(protocol) {}
  virtual ~ArrayPickler() = default;
  virtual void array(StateElement element, Dims dims, const std::string& bytes) = 0;
  virtual std::string finish() = 0;

  PickleWriter pickle;
};

class NumpyPickler final : public ArrayPickler {
 public:
  NumpyPickler() : ArrayPickler(5) {}

  void array(StateElement element, Dims dims, const std::string& bytes) override {
    pickle.call([&] { pickle.global("numpy._core.numeric", "_frombuffer"); },
                [&] {
                  pickle.tuple([&] { pickle.buffer(bytes); }, [&] { dtype(element); },
                               [&] { pickle.integers(dims); }, [&] { pickle.shared_text("C"); });
                });
  }

  std::string finish() override { return std::move(pickle).finish(); }

 private:
  void dtype(StateElement element) {
    const char* const name = element == StateElement::int8  ? "i1"
                             : element == StateElement::f16 ? "f2"
                                                            : "f4";
    const auto none = [&] { pickle.none(); };
    const auto minus_one = [&] { pickle.integer(-1); };
    pickle.shared(name, [&] {
      const std::size_t object =
          pickle.call([&] { pickle.global("numpy", "dtype"); },
                      [&] {
                        pickle.tuple([&] { pickle.text(name); }, [&] { pickle.boolean(false); },
                                     [&] { pickle.boolean(true); });
                      });
      // 3 is the version of the state.
      pickle.tuple([&] { pickle.integer(3); },
                   [&] { pickle.shared_text(element == StateElement::int8 ? "|" : "<"); }, none, none, none,
                   minus_one, minus_one, [&] { pickle.integer(0); });
      pickle.build();
      return object;
    });
  }
};

class TorchPickler final : public ArrayPickler {
 public:
  TorchPickler() : ArrayPickler(2) {}

  void array(StateElement element, Dims dims, const std::string& bytes) override {
    const std::size_t key = storages_.size();
    pickle.call([&] { pickle.global("torch._utils", "_rebuild_tensor_v2"); },
                [&] {
                  pickle.tuple([&] { storage(element, key, bytes.size()); }, [&] { pickle.integer(0); },
                               [&] { pickle.integers(dims); }, [&] { strides(dims); },
                               [&] { pickle.boolean(false); },
                               [&] {
                                 pickle.call([&] { pickle.global("collections", "OrderedDict"); },
                                             [&] { pickle.tuple(); });
                               });
                });
    storages_.push_back(bytes);
  }

  std::string finish() override {
    constexpr std::uint64_t kTorchAlignment = 64;
    ZipWriter zip(kTorchAlignment);
    const auto add = [&](const std::string& name, std::string_view content) {
      zip.add("archive/" + name, std::as_bytes(std::span(content)));
    };
    add("data.pkl", std::move(pickle).finish());
    add("byteorder", "little");
    for (std::size_t i = 0; i < storages_.size(); ++i) add(fmt::format("data/{}", i), storages_[i]);
    add("version", "3\n");
    return std::move(zip).finish();
  }

 private:
  void storage(StateElement element, std::size_t key, std::size_t bytes) {
    const std::size_t width = element == StateElement::int8 ? 1 : element == StateElement::f16 ? 2 : 4;
    pickle.tuple([&] { pickle.shared_text("storage"); },
                 [&] {
                   pickle.global("torch", element == StateElement::int8  ? "CharStorage"
                                          : element == StateElement::f16 ? "HalfStorage"
                                                                         : "FloatStorage");
                 },
                 [&] { pickle.text(std::to_string(key)); }, [&] { pickle.shared_text("cpu"); },
                 [&] { pickle.integer(static_cast<std::int64_t>(bytes / width)); });
    pickle.persistent();
  }
  void strides(Dims dims) {
    std::vector<std::int64_t> strides(dims.size(), 1);
    for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
    pickle.integers(strides);
  }

  std::vector<std::string> storages_;
};

// The indices of the parameters in the order of the script's state. In MLX a module's entries are
// in the order of its constructor; PyTorch lists a module's own parameters before those of its
// parts.
std::vector<std::size_t> script_order(std::span<const Param> params, PickledBy by) {
  using enum Role;
  static constexpr Role kMlx[] = {token_embedding, skip_weights, query,    key,        value,     attn_proj,
                                  q_gain,          mlp_fc,       mlp_proj, attn_scale, mlp_scale, resid_mix};
  static constexpr Role kTorch[] = {skip_weights, token_embedding, attn_scale, mlp_scale,
                                    resid_mix,    q_gain,          query,      key,
                                    value,        attn_proj,       mlp_fc,     mlp_proj};
  const std::span<const Role> roles = by == PickledBy::numpy ? std::span(kMlx) : std::span(kTorch);
  std::vector<std::size_t> order(params.size());
  std::iota(order.begin(), order.end(), 0);
  // Roles that the scripts do not have come last.
  const auto place = [&](std::size_t i) {
    const auto rank = std::ranges::find(roles, params[i].role) - roles.begin();
    const bool in_model = params[i].layer < 0 && std::cmp_less(rank, roles.size());
    return std::tuple(in_model ? 0 : params[i].layer < 0 ? 2 : 1, params[i].layer, rank);
  };
  std::ranges::stable_sort(order, {}, place);
  return order;
}

std::string_view name_of_original(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

bool by_row(const PackedTensor& tensor) {
  return tensor.storage == Storage::int8;
}

void write_scales(ArrayPickler& out, const PackedTensor& tensor) {
  const std::int64_t rows = static_cast<std::int64_t>(tensor.scales.size());
  if (by_row(tensor))
    out.array(StateElement::f16, std::span(&rows, 1), half_bytes(tensor.scales));
  else
    out.array(StateElement::f32, {}, bytes_of(std::span<const float>(tensor.scales)));
}

void write_kept(ArrayPickler& out, const Param& param, const PackedTensor& tensor) {
  const std::span<const float> values(tensor.floats);
  if (tensor.storage == Storage::f16)
    out.array(StateElement::f16, param.dims, half_bytes(values));
  else
    out.array(StateElement::f32, param.dims, bytes_of(values));
}

// A dict of the state: its key, and the tensors in it.
struct StatePart {
  std::string_view key;
  bool (*has)(const PackedTensor& tensor);
  void (*write)(ArrayPickler& out, const Param& param, const PackedTensor& tensor);
  bool optional = false;  // left out if it is empty
};

bool is_int8(const PackedTensor& tensor) {
  return is_quantized(tensor.storage);
}

constexpr StatePart kStateParts[] = {
    {"quantized", is_int8,
     [](ArrayPickler& out, const Param& param, const PackedTensor& tensor) {
       out.array(StateElement::int8, param.dims, bytes_of(std::span<const std::int8_t>(tensor.q)));
     }},
    {"scales", is_int8,
     [](ArrayPickler& out, const Param&, const PackedTensor& tensor) { write_scales(out, tensor); }},
    {"dtypes", is_int8,
     [](ArrayPickler& out, const Param&, const PackedTensor& tensor) {
       out.pickle.text(name_of_original(tensor.restored));
     }},
    {"passthrough", [](const PackedTensor& tensor) { return !is_int8(tensor); }, write_kept},
    {"qmeta", by_row,
     [](ArrayPickler& out, const Param&, const PackedTensor&) {
       out.pickle.dict(2, [&](std::size_t i) {
         out.pickle.shared_text(i == 0 ? "scheme" : "axis");
         i == 0 ? out.pickle.shared_text("per_row") : out.pickle.integer(0);
       });
     },
     true},
    {"passthrough_orig_dtypes", [](const PackedTensor& tensor) { return tensor.storage == Storage::f16; },
     [](ArrayPickler& out, const Param&, const PackedTensor& tensor) {
       out.pickle.text(name_of_original(tensor.restored));
     },
     true}};

void write_state(ArrayPickler& out, std::span<const Param> params, std::span<const PackedTensor> tensors,
                 std::span<const std::size_t> order) {
  std::vector<std::pair<const StatePart*, std::vector<std::size_t>>> parts;
  for (const StatePart& part : kStateParts) {
    std::vector<std::size_t> members;
    for (const std::size_t i : order)
      if (part.has(tensors[i])) members.push_back(i);
    if (!members.empty() || !part.optional) parts.emplace_back(&part, std::move(members));
  }
  out.pickle.dict(1 + parts.size(), [&](std::size_t n) {
    if (n == 0) {
      out.pickle.text("__quant_format__");
      out.pickle.text("int8_clean_per_row_v1");
      return;
    }
    const auto& [part, members] = parts[n - 1];
    out.pickle.text(part->key);
    out.pickle.dict(members.size(), [&](std::size_t m) {
      const Param& param = params[members[m]];
      out.pickle.shared_text(param.name);
      part->write(out, param, tensors[members[m]]);
    });
  });
}

}  // namespace

std::string int8_state(const ParamTable& table, std::span<const PackedTensor> tensors, PickledBy by) {
  check(tensors.size() == table.all().size(), "[int8 state] found {} tensors, expected {}", tensors.size(),
        table.all().size());
  for (const PackedTensor& tensor : tensors)
    check(tensor.storage != Storage::int6 && tensor.storage != Storage::int5,
          "[int8 state] expected tensors of 8 bits, found one of fewer");
  const std::unique_ptr<ArrayPickler> out =
      by == PickledBy::numpy ? std::unique_ptr<ArrayPickler>(std::make_unique<NumpyPickler>())
                             : std::make_unique<TorchPickler>();
  const std::vector<Param> params = script_params(table);
  std::vector<PackedTensor> all(tensors.begin(), tensors.end());
  all.resize(params.size());  // the empty one is f32
  write_state(*out, params, all, script_order(params, by));
  return out->finish();
}

std::string torch_state_dict(const ParamTable& table, std::span<const float> weights) {
  TorchPickler out;
  const std::vector<Param> params = script_params(table);
  const std::vector<std::size_t> order = script_order(params, PickledBy::torch);
  out.pickle.dict(order.size(), [&](std::size_t i) {
    const Param& param = params[order[i]];
    out.pickle.text(param.name);
    out.array(StateElement::f32, param.dims, bytes_of(param.in(weights)));
  });
  return out.finish();
}

}  // namespace thimble
