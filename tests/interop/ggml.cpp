// Calls ggml and llama.cpp where node-llama-cpp has no function for it. ggml.js compiles and runs
// it.
//
//   ggml LIBRARY decode TYPE BLOCK_BYTES BLOCK < blocks > f32    ggml's dequantize_row_TYPE
//   ggml LIBRARY quantize IN.gguf OUT.gguf FILE_TYPE             llama_model_quantize
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

template <class Function>
Function* loaded(const char* library, const std::string& name) {
  void* handle = dlopen(library, RTLD_NOW);
  void* function = handle ? dlsym(handle, name.c_str()) : nullptr;
  if (!function) {
    std::cerr << dlerror() << '\n';
    std::exit(1);
  }
  return reinterpret_cast<Function*>(function);
}

int decode(const char* library, const std::string& type, std::size_t block_bytes, std::size_t block) {
  const auto dequantize = loaded<void(const void*, float*, std::int64_t)>(library, "dequantize_row_" + type);
  const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<float> values(bytes.size() / block_bytes * block);
  dequantize(bytes.data(), values.data(), static_cast<std::int64_t>(values.size()));
  std::cout.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(float)));
  return 0;
}

// The first fields of llama_model_quantize_params; the rest keeps its defaults.
struct QuantizeParams {
  std::int32_t threads;
  std::int32_t file_type;
  char rest[1016];
};

int quantize(const char* library, const char* in, const char* out, int file_type) {
  auto params = loaded<QuantizeParams()>(library, "llama_model_quantize_default_params")();
  params.threads = 1;
  params.file_type = file_type;
  const auto run =
      loaded<std::uint32_t(const char*, const char*, const QuantizeParams*)>(library, "llama_model_quantize");
  return static_cast<int>(run(in, out, &params));
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 2 ? words[2] : "";
  if (what == "decode" && count == 6)
    return decode(words[1], words[3], std::stoul(words[4]), std::stoul(words[5]));
  if (what == "quantize" && count == 6) return quantize(words[1], words[3], words[4], std::stoi(words[5]));
  std::cerr << "see the comment at the top of ggml.cpp\n";
  return 2;
}
