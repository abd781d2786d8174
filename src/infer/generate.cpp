#include "infer/generate.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "model/rows.h"

namespace thimble {

namespace {

void append(std::vector<TokenScore>& all, const std::vector<TokenScore>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void take(const Event& event, Sample& sample) {
  sample.text += event.text;
  append(sample.tokens, event.tokens);
  append(sample.prompt, event.prompt);
  if (!event.finish) return;
  sample.finish = *event.finish;
  sample.stop_string = event.stop_string;
  sample.usage = event.usage;
}

}  // namespace

std::vector<Sample> generate(Batcher& batcher, Request request, const std::function<void(const Event&)>& show,
                             const Interrupt* interrupt) {
  check(!batcher.busy(), "[generate] the batcher already has requests");
  std::vector<Sample> samples(static_cast<std::size_t>(std::max(request.samples, 0)));
  const RequestId id = batcher.submit(std::move(request));
  try {
    while (batcher.busy()) {
      const bool interrupted = interrupt && interrupt->requested();
      for (const Event& event : interrupted ? batcher.cancel(id) : batcher.step()) {
        if (show) show(event);
        if (event.error) throw *event.error;
        take(event, samples[static_cast<std::size_t>(event.sample)]);
      }
    }
  } catch (...) {
    batcher.cancel(id);  // leave the batcher idle for the next request
    throw;
  }
  return samples;
}

void generate_tokens(Model& model, std::vector<TokenId> prompt, const ChooseNext& next) {
  check(!prompt.empty() && std::ssize(prompt) <= model.config().context,
        "[generate] a prompt of {} tokens for a context of {}", prompt.size(), model.config().context);
  KvCache cache = model.make_cache(1);
  std::vector<TokenId>& tokens = prompt;
  for (std::size_t at = 0; at < tokens.size() && std::cmp_less(at, model.config().context); ++at) {
    const DecodeRow row{.token = tokens[at],
                        .previous = at > 0 ? tokens[at - 1] : -1,
                        .before_previous = at > 1 ? tokens[at - 2] : -1,
                        .position = static_cast<std::int32_t>(at)};
    const Tensor logits = model.decode(decode_rows(model.config(), 1, std::span(&row, 1)), cache);
    if (at + 1 < tokens.size()) continue;
    const std::optional<TokenId> id = next({logits.row<float>(0), static_cast<std::size_t>(logits.cols)});
    if (!id) return;
    tokens.push_back(*id);
  }
}

}  // namespace thimble
