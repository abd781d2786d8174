// The gradient of a model divided into buckets in the order in which backward completes them, so
// that ranks can sum a bucket while the others are still being computed.
//
// The buckets depend only on the model and its schedule, so all ranks have the same buckets and
// every run gives the same bits. Small parameters share a bucket, large ones are split. Gradients
// that no step writes stay zero and are left out.
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
  std::int64_t offset = 0, count = 0;  // in the parameter block
  bool operator==(const GradientRange&) const = default;
};

struct GradientBucket {
  int after_step = 0;  // the step of the program that completes the bucket's gradients
  std::vector<GradientRange> ranges;
};

// 4 MiB: large enough to hide the fixed cost of a message, small enough that the first sum starts
// early.
inline constexpr std::int64_t kBucketFloats = 1 << 20;

std::vector<GradientBucket> gradient_buckets(BoundProgram& program,
                                             std::int64_t bucket_floats = kBucketFloats);

// Sums the gradients of one step over the ranks, starting each bucket as soon as the program has
// completed it.
//
//   GradientSums sums(ranks, gradients);
//   model.add_gradients(.., {.after_step = &sums.begin(program, "step 12")});  // last micro-batch
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
  std::size_t next_ = 0;  // index of the next bucket to sum
  std::vector<std::unique_ptr<PendingSum>> pending_;
};

}  // namespace thimble
