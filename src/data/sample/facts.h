// Facts, spelled: one name for one combination, whoever tells it and in whatever words (split.h).
#pragma once

#include <string>
#include <string_view>

#include "data/sample/world.h"

namespace thimble::sample {

std::string has_fact(const Person& owner, std::string_view colour, std::string_view thing);
std::string at_fact(std::string_view who, const Place& place);  // who: "Anna", "the cat"
std::string town_fact(std::string_view who, std::string_view town);
std::string colour_fact(std::string_view thing, std::string_view colour);
std::string good_fact(std::string_view who, const Good& good);
std::string does_fact(std::string_view who, std::string_view deed);
std::string count_fact(const Person& owner, int count, const Good& good);
std::string sum_fact(const Person& owner, const Good& good, int had, int change);  // change < 0: fewer
std::string count_aloud_fact(int from, int to);
std::string group_fact(const Place& place, std::span<const std::string_view> animals);  // in any order
std::string size_fact(const Animal& one, const Animal& other);                          // in any order
std::string height_fact(const Person& taller, const Person& shorter);
std::string likes_fact(const Person& who, std::string_view colour, std::string_view thing);

}  // namespace thimble::sample
