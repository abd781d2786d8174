// A teller makes one document: it draws from the world what belongs to its split, and remembers what it told.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "data/sample/split.h"

namespace thimble::sample {

class Teller {
 public:
  // Document `index` of a corpus: every document is a function of these three numbers alone.
  Teller(Split split, std::uint64_t seed, std::uint64_t index)
      : split_(split), rng_(seed, 0, 2 * index + (split == Split::heldout ? 1 : 0)) {}

  Split split() const { return split_; }
  const std::vector<std::string>& told() const { return told_; }  // every fact that was

  int number(int least, int most) {
    const int choices = most - least + 1;
    return least + static_cast<int>(rng_.below(static_cast<std::uint64_t>(choices)));
  }
  bool one_in(std::uint64_t times) { return rng_.below(times) == 0; }
  template <class List>
  const auto& pick(const List& list) {
    return list[static_cast<std::size_t>(rng_.below(list.size()))];
  }
  // One of several phrasings, with {0}, {1}, ... filled in.
  template <class... Args>
  std::string say(std::initializer_list<std::string_view> phrasings, const Args&... words) {
    return fmt::format(fmt::runtime(phrasings.begin()[rng_.below(phrasings.size())]), words...);
  }
  // One of those that `fits`, or nullptr when none does.
  template <class List, class Fits>
  auto pick_if(const List& list, Fits fits) -> decltype(&list[0]) {
    std::vector<decltype(&list[0])> fitting;
    for (const auto& item : list)
      if (fits(item)) fitting.push_back(&item);
    return fitting.empty() ? nullptr : pick(fitting);
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng_.below(i)]);
  }

  bool may_tell(std::string_view fact) const { return split_of(fact) == split_; }
  // Remembers the fact, if it is one of this split.
  bool tell(std::string fact) {
    if (!may_tell(fact)) return false;
    told_.push_back(std::move(fact));
    return true;
  }

 private:
  Split split_;
  Rng rng_;
  std::vector<std::string> told_;
};

}  // namespace thimble::sample
