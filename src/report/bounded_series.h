// A list that stays short however much is added to it: each of its points stands for `span` added ones in a row. When
// there is no room left, neighbours become one and the span doubles: so no part of a run gets coarser than another.
//
//   merged(a, b)   one point for two in a row, b the later; a function beside Point
//
// The latest point is there as it was added, too, unless the last of the others has its step.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace thimble {

template <class Point>
class BoundedSeries {
 public:
  // `most`: an even number of points, the latest not counted.
  explicit BoundedSeries(std::size_t most) : most_(most) {
    check(most >= 2 && most % 2 == 0, "[bounded series] room for {} points, expected an even number", most);
  }

  void add(Point point) {
    latest_ = point;
    if (in_last_ == span_ && points_.size() == most_) halve();
    if (points_.empty() || in_last_ == span_) {
      points_.push_back(std::move(point));
      in_last_ = 1;
    } else {
      points_.back() = merged(points_.back(), point);
      ++in_last_;
    }
  }

  std::vector<Point> points() const {
    std::vector<Point> points = points_;
    if (latest_ && latest_->step != points.back().step) points.push_back(*latest_);
    return points;
  }

 private:
  void halve() {
    for (std::size_t i = 0; i < most_ / 2; ++i) points_[i] = merged(points_[2 * i], points_[2 * i + 1]);
    points_.resize(most_ / 2);
    span_ *= 2;
    in_last_ = span_;
  }

  std::vector<Point> points_;
  std::optional<Point> latest_;
  std::size_t most_;
  std::size_t span_ = 1, in_last_ = 0;  // in_last_: added ones that the last point stands for
};

}  // namespace thimble
