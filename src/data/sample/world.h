// The small world of the built-in corpus: its people, animals, places, things and numbers.
//
// Words are common English nouns with regular plurals, so that a small vocabulary encodes each in
// one or two tokens and a small model can learn how they are used.
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
  std::string_view name, says;  // says: empty if the animal makes no sound
  int size;
};

struct Place {
  std::string_view name, preposition;

  std::string where() const { return std::string(preposition) + " the " + std::string(name); }
};

// Things that are counted.
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
std::string capitalized(std::string_view words);         // "The cat"
std::string listed(std::span<const std::string> words);  // "a, b and c"

// Facts in canonical spelling: one string per fact, independent of the sentence that expresses it.
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

// Assigns each fact to the training split or the held-out split.
//
// A fact is one combination in canonical spelling ("has Anna red ball"). The hash of that string
// decides its split. A held-out fact occurs in no tale, question or answer of the training split,
// for any size and seed; the held-out split tells only held-out facts.
enum class Split { train, heldout };

// One fact in eight is held out.
Split split_of(std::string_view fact);

}  // namespace thimble::sample
