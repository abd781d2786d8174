// The small world of the built-in corpus: who lives there, what they own, where they go, how they count.
//
// Words are plain English nouns with regular plurals, so that a small vocabulary spells each in a token or
// two and a small model has time to learn what is done with them.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace thimble::sample {

struct Person {
  std::string_view name;
  bool she;

  std::string_view pronoun() const { return she ? "she" : "he"; }
};

// Two animals of the same size are never compared.
struct Animal {
  std::string_view name, says;  // says: empty, when it says nothing
  int size;
};

struct Place {
  std::string_view name, preposition;

  std::string where() const { return std::string(preposition) + " the " + std::string(name); }
};

// What is found by the handful, and eaten or not.
struct Good {
  std::string_view name;
  bool edible;
};

inline constexpr auto kPeople = std::to_array<Person>({
    {"Anna", true},  {"Ben", false},   {"Clara", true}, {"David", false},  {"Emma", true},  {"Felix", false},
    {"Grace", true}, {"Henry", false}, {"Ida", true},   {"Jack", false},   {"Kate", true},  {"Leo", false},
    {"Mia", true},   {"Noah", false},  {"Olive", true}, {"Paul", false},   {"Rosa", true},  {"Sam", false},
    {"Tilda", true}, {"Tom", false},   {"Una", true},   {"Victor", false}, {"Wanda", true}, {"Will", false},
});

inline constexpr auto kAnimals = std::to_array<Animal>({
    {"ant", "", 1},
    {"bee", "buzz", 2},
    {"mouse", "squeak", 3},
    {"frog", "croak", 3},
    {"hen", "cluck", 4},
    {"duck", "quack", 4},
    {"cat", "meow", 5},
    {"dog", "woof", 6},
    {"goat", "maa", 7},
    {"sheep", "baa", 7},
    {"pig", "oink", 7},
    {"donkey", "hee-haw", 8},
    {"cow", "moo", 9},
    {"horse", "neigh", 9},
    {"elephant", "toot", 10},
    {"whale", "", 11},
});

inline constexpr auto kPlaces = std::to_array<Place>({
    {"garden", "in"},
    {"kitchen", "in"},
    {"barn", "in"},
    {"forest", "in"},
    {"meadow", "in"},
    {"cellar", "in"},
    {"tower", "in"},
    {"library", "in"},
    {"mill", "at"},
    {"market", "at"},
    {"school", "at"},
    {"harbour", "at"},
    {"river", "by"},
    {"lake", "by"},
    {"hill", "on"},
    {"bridge", "under"},
});

inline constexpr auto kTowns = std::to_array<std::string_view>({
    "Rome",
    "Paris",
    "Oslo",
    "Bern",
    "Lima",
    "Cairo",
    "Delhi",
    "Quito",
    "Riga",
    "Seoul",
    "Tunis",
    "Vienna",
    "Dublin",
    "Prague",
    "Lisbon",
    "Havana",
});

inline constexpr auto kDeeds = std::to_array<std::string_view>({
    "sings",
    "reads",
    "sleeps",
    "dances",
    "swims",
    "cooks",
    "paints",
    "runs",
    "laughs",
    "jumps",
    "knits",
    "fishes",
    "rests",
    "hums",
    "digs",
    "waits",
});

inline constexpr auto kThings = std::to_array<std::string_view>({
    "ball",
    "kite",
    "cup",
    "hat",
    "book",
    "drum",
    "lamp",
    "boat",
    "key",
    "bell",
    "basket",
    "spoon",
    "flute",
    "ribbon",
    "pencil",
    "whistle",
});

inline constexpr auto kColours = std::to_array<std::string_view>({
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "black",
    "brown",
    "pink",
    "purple",
    "golden",
    "silver",
    "grey",
});

inline constexpr auto kGoods = std::to_array<Good>({
    {"apple", true},
    {"plum", true},
    {"pear", true},
    {"nut", true},
    {"egg", true},
    {"carrot", true},
    {"cookie", true},
    {"button", false},
    {"shell", false},
    {"coin", false},
    {"stone", false},
    {"feather", false},
});

inline constexpr int kLargestNumber = 20;

std::string number_word(int number);                     // 0 to kLargestNumber: "no", "one", ...
std::string with_article(std::string_view words);        // "a red ball", "an apple"
std::string counted(int number, std::string_view good);  // "one apple", "three apples", "no apples"
std::string capitalised(std::string_view words);         // "The cat"
std::string listed(std::span<const std::string> words);  // "a, b and c"

}  // namespace thimble::sample
