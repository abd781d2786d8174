#include "data/sample/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/joined.h"

namespace thimble::sample {

std::string has_fact(const Person& owner, std::string_view colour, std::string_view thing) {
  return fmt::format("has {} {} {}", owner.name, colour, thing);
}

std::string at_fact(std::string_view who, const Place& place) {
  return fmt::format("at {} {}", who, place.name);
}

std::string town_fact(std::string_view who, std::string_view town) {
  return fmt::format("near {} {}", who, town);
}

std::string colour_fact(std::string_view thing, std::string_view colour) {
  return fmt::format("colour {} {}", thing, colour);
}

std::string good_fact(std::string_view who, const Good& good) {
  return fmt::format("good {} {}", who, good.name);
}

std::string does_fact(std::string_view who, std::string_view deed) {
  return fmt::format("does {} {}", who, deed);
}

std::string count_fact(const Person& owner, int count, const Good& good) {
  return fmt::format("count {} {} {}", owner.name, count, good.name);
}

std::string sum_fact(const Person& owner, const Good& good, int had, int change) {
  return fmt::format("sum {} {} {} {:+}", owner.name, good.name, had, change);
}

std::string count_aloud_fact(int from, int to) {
  return fmt::format("count {} to {}", from, to);
}

std::string group_fact(const Place& place, std::span<const std::string_view> animals) {
  std::vector<std::string_view> sorted(animals.begin(), animals.end());
  std::ranges::sort(sorted);
  return fmt::format("group {} {}", place.name, joined(sorted, " "));
}

std::string size_fact(const Animal& one, const Animal& other) {
  const auto [first, second] = std::minmax(one.name, other.name);
  return fmt::format("size {} {}", first, second);
}

std::string height_fact(const Person& taller, const Person& shorter) {
  return fmt::format("taller {} {}", taller.name, shorter.name);
}

std::string likes_fact(const Person& who, std::string_view colour, std::string_view thing) {
  return fmt::format("likes {} {} {}", who.name, colour, thing);
}

}  // namespace thimble::sample
