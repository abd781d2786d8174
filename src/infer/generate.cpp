#include "infer/generate.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

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
  check(!batcher.busy(), "[generate] the batcher has other requests");
  std::vector<Sample> samples(static_cast<std::size_t>(std::max(request.samples, 0)));
  const RequestId id = batcher.submit(std::move(request));
  try {
    while (batcher.busy()) {
      const bool interrupted = interrupt && interrupt->asked();
      for (const Event& event : interrupted ? batcher.cancel(id) : batcher.step()) {
        if (show) show(event);
        if (event.error) throw *event.error;
        take(event, samples[static_cast<std::size_t>(event.sample)]);
      }
    }
  } catch (...) {
    batcher.cancel(id);  // the next request finds it free
    throw;
  }
  return samples;
}

}  // namespace thimble
