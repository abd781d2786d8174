#include "data/sample/world.h"

#include <set>

#include "base/error.h"

namespace thimble::sample {
namespace {

TEST(SampleWorld, FormatsWordsAsEnglish) {
  EXPECT_EQ(with_article("red ball"), "a red ball");
  EXPECT_EQ(with_article("apple"), "an apple");
  EXPECT_EQ(counted(1, "apple"), "one apple");
  EXPECT_EQ(counted(3, "apple"), "three apples");
  EXPECT_EQ(counted(0, "apple"), "no apples");
  EXPECT_EQ(capitalized("the cat"), "The cat");
  EXPECT_EQ(capitalized("Anna"), "Anna");
  EXPECT_EQ(number_word(20), "twenty");
  EXPECT_THROW(number_word(21), Error);
  EXPECT_EQ(listed(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b"}), "a and b");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b", "c"}), "a, b and c");
}

// A word in two lists would give two different facts the same spelling.
TEST(SampleWorld, WordListsAreDisjoint) {
  std::multiset<std::string_view> words;
  for (const Person& person : kPeople) words.insert(person.name);
  for (const Animal& animal : kAnimals) words.insert(animal.name);
  for (const Place& place : kPlaces) words.insert(place.name);
  for (const Good& good : kGoods) words.insert(good.name);
  for (std::string_view word : kThings) words.insert(word);
  for (std::string_view word : kColours) words.insert(word);
  for (std::string_view word : kDeeds) words.insert(word);
  for (std::string_view word : words) EXPECT_EQ(words.count(word), 1u) << word;
}

}  // namespace
}  // namespace thimble::sample
