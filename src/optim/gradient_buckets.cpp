#include "optim/gradient_buckets.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace thimble {

namespace {

struct Finished {
  int step;
  GradientRange range;
};

// The ranges of all parameters that get a gradient, in the order in which backward completes them.
std::vector<Finished> finished_order(BoundProgram& program) {
  std::vector<Finished> all;
  for (const auto& [value, view] : program.graph().trained()) {
    const int step = program.program().last_writer(value);
    if (step >= 0) all.push_back({step, {view.offset, view.count()}});
  }
  std::ranges::sort(all, {}, [](const Finished& one) { return one.range.offset; });
  for (std::size_t i = 1; i < all.size(); ++i)
    check(all[i - 1].range.offset + all[i - 1].range.count <= all[i].range.offset,
          "[buckets] two parameters share memory at {}", all[i].range.offset);
  std::ranges::stable_sort(all, {}, &Finished::step);
  return all;
}

}  // namespace

std::vector<GradientBucket> gradient_buckets(BoundProgram& program, std::int64_t bucket_floats) {
  std::vector<GradientBucket> buckets;
  std::int64_t room = 0;
  for (Finished one : finished_order(program)) {
    while (one.range.count > 0) {
      if (room == 0) {
        buckets.emplace_back();
        room = bucket_floats;
      }
      const std::int64_t count = std::min(room, one.range.count);
      buckets.back().after_step = one.step;
      buckets.back().ranges.push_back({one.range.offset, count});
      room -= count;
      one.range.offset += count;
      one.range.count -= count;
    }
  }
  return buckets;
}

const Program::AfterStep& GradientSums::begin(BoundProgram& program, const std::string& step) {
  check(pending_.empty(), "[buckets] begin() was called before wait()");
  buckets_ = gradient_buckets(program);  // the steps depend on the program
  step_ = step;
  next_ = 0;
  return after_step_;
}

void GradientSums::finished(int step) {
  for (; next_ < buckets_.size() && buckets_[next_].after_step <= step; ++next_) {
    std::vector<std::span<float>> pieces;
    for (const GradientRange& range : buckets_[next_].ranges)
      pieces.push_back(
          gradients_.subspan(static_cast<std::size_t>(range.offset), static_cast<std::size_t>(range.count)));
    pending_.push_back(ranks_.start_sum(
        std::move(pieces), fmt::format("gradients {} of {}, {}", next_ + 1, buckets_.size(), step_)));
  }
}

void GradientSums::wait() {
  check(next_ == buckets_.size(), "[buckets] only {} of {} sums were started", next_, buckets_.size());
  for (const auto& sum : pending_) sum->wait();
  pending_.clear();
}

}  // namespace thimble
