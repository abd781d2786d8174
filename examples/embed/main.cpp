// Loads a model of any format and continues a text:   embed MODEL PROMPT [TOKENS]
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/error.h"
#include "formats/model_file.h"
#include "infer/generate.h"

namespace {

void continue_text(const char* path, const char* prompt, int tokens) {
  using namespace thimble;
  const ModelFile file = open_model(path, WeightsAs::stored);
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer", path);
  const Context context;
  Model model = make_model(file, context);
  Batcher batcher(model, tokenizer.get());
  Request request = text_request(*tokenizer, prompt);
  request.max_tokens = tokens;
  request.sampling.temperature = 0;  // greedy
  std::printf("%s", prompt);
  generate(batcher, request, [](const Event& event) { std::printf("%s", event.text.c_str()); });
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: embed MODEL PROMPT [TOKENS]\n"), 2;
  continue_text(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 40);
} catch (const thimble::Error& error) {
  return std::fprintf(stderr, "%s\n", describe(error).c_str()), 1;
}
