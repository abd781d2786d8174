#include "cli/ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/version.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "dist/exchange.h"
#include "dist/plugins.h"
#include "train/learned_tokenizer.h"

namespace thimble {

Option rank_timeout_option() {
  return {.name = "rank-timeout",
          .value = "SECONDS",
          .initial = "600",
          .help = "of several ranks (mpirun): how long one waits for another before all end"};
}

std::shared_ptr<Communicator> ranks_from(const Arguments& arguments) {
  return join_ranks(read_launch(), arguments.number("rank-timeout", {.least = 0.1, .most = 1e6}));
}

void check_same_command(Communicator& ranks, const Arguments& arguments) {
  check_same(ranks, {{"version of thimble", std::string(version())}, {"command line", arguments.spoken()}},
             "all ranks need the same binary and the same words");
}

void let_first_rank_speak() {
  if (read_launch().rank > 0) std::this_thread::sleep_for(std::chrono::seconds(5));
}

std::shared_ptr<const Tokenizer> tokenizer_on_all(Communicator& ranks, const Arguments& arguments,
                                                  const DataSettings& data, const ModelFile* init,
                                                  Console& console, const Interrupt& interrupt) {
  std::shared_ptr<const Tokenizer> tokenizer;
  bool learned = false;
  together(
      ranks, "rank 0 makes the tokenizer",
      [&] {
        if (arguments.given("tokenizer"))
          as_usage([&] { learned = TokenizerWish::parse(arguments.text("tokenizer")).has_value(); });
        if (!learned || ranks.first()) tokenizer = tokenizer_from(arguments, data, init, console, interrupt);
      },
      Patience::endless);
  if (!learned || ranks.size() == 1) return tokenizer;
  std::string content = ranks.first() ? tokenizer->serialized() : "";
  share_text(ranks, content, "the tokenizer");
  if (!ranks.first()) tokenizer = load_tokenizer_bytes(std::move(content), "the tokenizer of rank 0");
  return tokenizer;
}

}  // namespace thimble
