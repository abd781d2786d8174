// Random valid inputs: rows of numbers, tokens, documents, orders.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "ops/embedding.h"
#include "ops/op_cases.h"
#include "ops/rope.h"

namespace thimble {

using Integers = std::vector<std::int32_t>;

inline Values absent() {
  return {};
}

inline Values column(const Integers& integers) {
  return {{static_cast<std::int64_t>(integers.size()), 1, DType::i32}, {integers.begin(), integers.end()}};
}

// Minimum scale of a gradient that is one number: a sum of O(1) terms of both signs.
inline constexpr double kOneSum = 1;

class Fill {
 public:
  explicit Fill(Op op)
      : rng_(1000 + static_cast<std::uint64_t>(std::ranges::find(all_ops(), op) - all_ops().begin())) {}

  // Normal random numbers, kept away from 0, where relu has a kink.
  Values rows(std::int64_t count, std::int64_t width, float deviation = 1) {
    constexpr float kKinkDistance = 1e-3f;
    Values values{{count, width, DType::f32}, {}};
    for (std::int64_t i = 0; i < count * width; ++i) {
      const float number = deviation * rng_.normal();
      values.numbers.push_back(std::abs(number) < kKinkDistance ? std::copysign(kKinkDistance, number)
                                                                : number);
    }
    return values;
  }
  Values vector(std::int64_t width) { return rows(1, width); }

  std::int32_t below(std::int64_t bound) {
    return static_cast<std::int32_t>(rng_.below(static_cast<std::uint64_t>(bound)));
  }
  Integers draws(std::int64_t count, std::int64_t bound) {
    Integers drawn(static_cast<std::size_t>(count));
    for (std::int32_t& draw : drawn) draw = below(bound);
    return drawn;
  }

  // `count` distinct rows of [0, of), in random order.
  Integers distinct(std::int64_t count, std::int64_t of) {
    Integers rows(static_cast<std::size_t>(of));
    std::iota(rows.begin(), rows.end(), 0);
    for (std::size_t i = rows.size(); i > 1; --i)
      std::swap(rows[i - 1], rows[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    rows.resize(static_cast<std::size_t>(count));
    return rows;
  }

  // The first row of each row's document; about one row in `length` starts a document.
  Integers first_rows(std::int64_t count, std::int64_t length) {
    Integers first(static_cast<std::size_t>(count));
    for (std::size_t n = 1; n < first.size(); ++n)
      first[n] = below(length) == 0 ? static_cast<std::int32_t>(n) : first[n - 1];
    return first;
  }

  // The row of the previous token, -1 at the start of a document.
  Integers previous_rows(std::int64_t count, std::int64_t length) {
    const Integers first = first_rows(count, length);
    Integers previous(first.size());
    for (std::size_t n = 0; n < first.size(); ++n) {
      const auto row = static_cast<std::int32_t>(n);
      previous[n] = first[n] == row ? -1 : row - 1;
    }
    return previous;
  }

  // Target tokens, about one in five not scored; the first is always scored.
  Integers targets(std::int64_t count, std::int64_t vocabulary) {
    Integers target = draws(count, vocabulary);
    for (std::size_t n = 1; n < target.size(); ++n)
      if (below(5) == 0) target[n] = -1;
    return target;
  }

 private:
  Rng rng_;
};

inline Values sorted_order(const Integers& index, std::int64_t buckets) {
  Integers order(index.size());
  sort_rows(index, buckets, order);
  return column(order);
}

inline Values rotation_table(std::int64_t positions, std::int64_t columns, int direction) {
  std::vector<float> numbers(static_cast<std::size_t>(positions * columns));
  fill_rotations(make_tensor(numbers.data(), positions, columns), 10000, direction);
  return {{positions, columns, DType::f32}, {numbers.begin(), numbers.end()}};
}

}  // namespace thimble
