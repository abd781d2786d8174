// Runs several requests concurrently in one batcher.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "infer/generate.h"

namespace thimble {

// Returns the first sample of each request, in the order of the requests.
inline std::vector<Sample> run_requests(Batcher& batcher, const std::vector<Request>& requests) {
  std::map<RequestId, std::size_t> index;
  std::vector<Sample> samples(requests.size());
  for (const Request& request : requests) index.emplace(batcher.submit(request), index.size());
  while (batcher.busy())
    for (const Event& event : batcher.step()) {
      if (event.error) throw *event.error;
      if (event.sample != 0) continue;
      Sample& sample = samples[index.at(event.request)];
      sample.text += event.text;
      sample.tokens.insert(sample.tokens.end(), event.tokens.begin(), event.tokens.end());
      sample.prompt.insert(sample.prompt.end(), event.prompt.begin(), event.prompt.end());
      if (!event.finish) continue;
      sample.finish = *event.finish;
      sample.usage = event.usage;
      sample.stop_string = event.stop_string;
    }
  return samples;
}

inline bool same_bits(const TokenScore& a, const TokenScore& b) {
  return a.id == b.id && a.logprob == b.logprob && a.top == b.top;
}

}  // namespace thimble
