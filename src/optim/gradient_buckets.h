// The gradient of a model in buckets, in the order in which backward finishes them: what ranks sum while the rest is
// still being computed.
//
// The buckets follow from the model and its schedule alone, so every rank has the same ones, and the same bits come of
// every run. Small parameters share a bucket, large ones are cut; what no step writes is zero everywhere and left out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "model/model.h"

namespace thimble {

struct GradientRange {
  std::int64_t offset = 0, count = 0;  // in the block of parameters
  bool operator==(const GradientRange&) const = default;
};

struct GradientBucket {
  int after_step = 0;  // of the program: then the last of its gradients is whole
  std::vector<GradientRange> ranges;
};

// 4 MiB: large enough that the fixed cost of a message is small beside it, small enough that the first leaves early.
inline constexpr std::int64_t kBucketFloats = 1 << 20;

std::vector<GradientBucket> gradient_buckets(BoundProgram& program,
                                             std::int64_t bucket_floats = kBucketFloats);

// Sums of one step's gradients over ranks, each started when the program has finished its bucket.
//
//   GradientSums sums(ranks, gradients);
//   model.add_gradients(.., {.after_step = &sums.begin(program, "step 12")});  // of the last micro-batch
//   sums.wait();
class GradientSums {
 public:
  GradientSums(Communicator& ranks, std::span<float> gradients) : ranks_(ranks), gradients_(gradients) {}

  const Program::AfterStep& begin(BoundProgram& program, const std::string& step);
  void wait();

 private:
  void finished(int step);

  Communicator& ranks_;
  std::span<float> gradients_;
  std::vector<GradientBucket> buckets_;
  std::string step_;
  Program::AfterStep after_step_ = [this](int step) { finished(step); };
  std::size_t next_ = 0;  // bucket
  std::vector<std::unique_ptr<PendingSum>> pending_;
};

}  // namespace thimble
