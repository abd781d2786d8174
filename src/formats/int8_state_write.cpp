#include <fmt/format.h>

#include <functional>

#include "base/error.h"
#include "base/half.h"
#include "formats/int8_state.h"
#include "formats/pickle_writer.h"
#include "formats/zip.h"

namespace thimble {

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

// How arrays are pickled: the rest of the file is the same for both.
class ArrayPickler {
 public:
  explicit ArrayPickler(std::uint8_t protocol) : pickle(protocol) {}
  virtual ~ArrayPickler() = default;
  virtual void array(StateElement element, Dims dims, const std::string& bytes) = 0;
  virtual std::string finish() = 0;

  void texts(std::string_view key, std::string_view value) {
    pickle.text(key);
    pickle.text(value);
  }

  PickleWriter pickle;

 protected:
  void dims_tuple(Dims dims) {
    pickle.mark();
    for (const std::int64_t dim : dims) pickle.integer(dim);
    pickle.tuple();
  }
};

class NumpyPickler final : public ArrayPickler {
 public:
  NumpyPickler() : ArrayPickler(4) {}

  void array(StateElement element, Dims dims, const std::string& bytes) override {
    pickle.global("numpy.core.multiarray", "_reconstruct");
    const std::string kind = "b";
    pickle.tuple_of([&] { pickle.global("numpy", "ndarray"); },
                    [&] { pickle.tuple_of([&] { pickle.integer(0); }); },
                    [&] { pickle.bytes(std::as_bytes(std::span(kind))); });
    pickle.reduce();
    pickle.tuple_of([&] { pickle.integer(1); }, [&] { dims_tuple(dims); }, [&] { dtype(element); },
                    [&] { pickle.boolean(false); }, [&] { pickle.bytes(std::as_bytes(std::span(bytes))); });
    pickle.build();
  }

  std::string finish() override { return std::move(pickle).finish(); }

 private:
  void dtype(StateElement element) {
    const char* const name = element == StateElement::int8  ? "i1"
                             : element == StateElement::f16 ? "f2"
                                                            : "f4";
    pickle.global("numpy", "dtype");
    pickle.tuple_of([&] { pickle.text(name); }, [&] { pickle.boolean(false); },
                    [&] { pickle.boolean(true); });
    pickle.reduce();
    pickle.mark();
    pickle.integer(3);  // the version of a dtype's state
    pickle.text(element == StateElement::int8 ? "|" : "<");
    for (int i = 0; i < 3; ++i) pickle.none();
    for (const int rest : {-1, -1, 0}) pickle.integer(rest);
    pickle.tuple();
    pickle.build();
  }
};

class TorchPickler final : public ArrayPickler {
 public:
  TorchPickler() : ArrayPickler(2) {}

  void array(StateElement element, Dims dims, const std::string& bytes) override {
    const std::size_t key = storages_.size();
    pickle.global("torch._utils", "_rebuild_tensor_v2");
    pickle.tuple_of([&] { storage(element, key, bytes.size()); }, [&] { pickle.integer(0); },
                    [&] { dims_tuple(dims); }, [&] { strides(dims); }, [&] { pickle.boolean(false); },
                    [&] {
                      pickle.global("collections", "OrderedDict");
                      pickle.mark();
                      pickle.tuple();
                      pickle.reduce();
                    });
    pickle.reduce();
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
    pickle.tuple_of([&] { pickle.text("storage"); },
                    [&] {
                      pickle.global("torch", element == StateElement::int8  ? "CharStorage"
                                             : element == StateElement::f16 ? "HalfStorage"
                                                                            : "FloatStorage");
                    },
                    [&] { pickle.text(std::to_string(key)); }, [&] { pickle.text("cpu"); },
                    [&] { pickle.integer(static_cast<std::int64_t>(bytes / width)); });
    pickle.persistent();
  }
  void strides(Dims dims) {
    std::vector<std::int64_t> strides(dims.size(), 1);
    for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
    dims_tuple(strides);
  }

  std::vector<std::string> storages_;
};

// One dict of the state: body(i) writes the value of tensor i.
void dict_of(ArrayPickler& out, std::string_view key, const ParamTable& table,
             std::span<const PackedTensor> tensors, const std::function<bool(const PackedTensor&)>& which,
             const std::function<void(std::size_t)>& body) {
  out.pickle.text(key);
  out.pickle.begin_dict();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!which(tensors[i])) continue;
    out.pickle.text(table.all()[i].name);
    body(i);
  }
  out.pickle.end_dict();
}

std::string_view name_of_original(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

bool quantised(const PackedTensor& tensor) {
  return is_quantised(tensor.storage);
}
bool kept(const PackedTensor& tensor) {
  return !is_quantised(tensor.storage);
}
bool by_row(const PackedTensor& tensor) {
  return tensor.storage == Storage::int8;
}
bool rounded_to_f16(const PackedTensor& tensor) {
  return tensor.storage == Storage::f16;
}

void write_scales(ArrayPickler& out, const PackedTensor& tensor) {
  const std::int64_t rows = static_cast<std::int64_t>(tensor.scales.size());
  if (by_row(tensor))
    out.array(StateElement::f16, std::span(&rows, 1), half_bytes(tensor.scales));
  else
    out.array(StateElement::f32, {}, bytes_of(std::span<const float>(tensor.scales)));
}

void write_state(ArrayPickler& out, const ParamTable& table, std::span<const PackedTensor> tensors) {
  const auto params = table.all();
  out.pickle.begin_dict();
  out.texts("__quant_format__", "int8_clean_per_row_v1");
  dict_of(out, "quantized", table, tensors, quantised, [&](std::size_t i) {
    out.array(StateElement::int8, params[i].dims, bytes_of(std::span<const std::int8_t>(tensors[i].q)));
  });
  dict_of(out, "scales", table, tensors, quantised, [&](std::size_t i) { write_scales(out, tensors[i]); });
  dict_of(out, "dtypes", table, tensors, quantised,
          [&](std::size_t i) { out.pickle.text(name_of_original(tensors[i].restored)); });
  dict_of(out, "passthrough", table, tensors, kept, [&](std::size_t i) {
    const std::span<const float> values(tensors[i].floats);
    if (rounded_to_f16(tensors[i]))
      out.array(StateElement::f16, params[i].dims, half_bytes(values));
    else
      out.array(StateElement::f32, params[i].dims, bytes_of(values));
  });
  dict_of(out, "qmeta", table, tensors, by_row, [&](std::size_t) {
    out.pickle.begin_dict();
    out.texts("scheme", "per_row");
    out.pickle.text("axis");
    out.pickle.integer(0);
    out.pickle.end_dict();
  });
  dict_of(out, "passthrough_orig_dtypes", table, tensors, rounded_to_f16,
          [&](std::size_t i) { out.pickle.text(name_of_original(tensors[i].restored)); });
  out.pickle.end_dict();
}

}  // namespace

std::string int8_state(const ParamTable& table, std::span<const PackedTensor> tensors, PickledBy by) {
  check(tensors.size() == table.all().size(), "[int8 state] {} tensors for a table of {}", tensors.size(),
        table.all().size());
  for (const PackedTensor& tensor : tensors)
    check(tensor.storage != Storage::int6 && tensor.storage != Storage::int5,
          "[int8 state] holds 8 bits, found a tensor of fewer");
  const std::unique_ptr<ArrayPickler> out =
      by == PickledBy::numpy ? std::unique_ptr<ArrayPickler>(std::make_unique<NumpyPickler>())
                             : std::make_unique<TorchPickler>();
  write_state(*out, table, tensors);
  return out->finish();
}

std::string torch_state_dict(const ParamTable& table, std::span<const float> weights) {
  TorchPickler out;
  out.pickle.begin_dict();
  for (const Param& param : table.all()) {
    out.pickle.text(param.name);
    out.array(StateElement::f32, param.dims, bytes_of(param.in(weights)));
  }
  out.pickle.end_dict();
  return out.finish();
}

}  // namespace thimble
