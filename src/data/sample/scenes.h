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
#include "data/sample/world.h"

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

// A scene: a short story and questions about it, each with its one right answer.
//
// One file per kind of scene. Answers are whole sentences and follow from the story and the wording of the
// question, so that a model can be right to the letter; those about the world at large (which animal is
// bigger, what follows seven) follow from what the training split tells.
struct Exchange {
  std::string question, answer;
};

struct Scene {
  std::string story;  // empty: the questions stand by themselves
  std::vector<Exchange> exchanges;

  void tell(const std::string& sentence) { story += (story.empty() ? "" : " ") + sentence; }
  void ask(std::string question, std::string answer) {
    exchanges.push_back({std::move(question), std::move(answer)});
  }
};

// In any order; held out, any number of them.
void keep_some(Teller& t, std::vector<Exchange>& exchanges);

std::string draw_being(Teller& t);  // "Anna", "the cat"

Scene doings(Teller& t);        // what does Anna do?
Scene belongings(Teller& t);    // who has the red ball?
Scene colours(Teller& t);       // what colour has the kite?
Scene whereabouts(Teller& t);   // where is the cat?
Scene sums(Teller& t);          // three apples and two more
Scene handfuls(Teller& t);      // how many together, who has more?
Scene counting(Teller& t);      // from four to nine; how many animals?
Scene comparisons(Teller& t);   // bigger, smaller, tallest, shortest
Scene acquaintance(Teller& t);  // what is my name?

// Hello, thank you, what can you do: the same for everybody, so it is never what held-out chats are about.
Exchange greeting(Teller& t);
Exchange small_talk(Teller& t);

// Stories made of statements, subject by subject, and questions that are answered by one of them or several.
//
// Within a story no two statements share a subject, a link or a value, so that each word says which one comes
// next: what a small model learns first (to go on as it went on before) is enough to answer, and to answer
// about combinations it has never met.
struct Statement {
  std::string fact;
  std::string subject, value;  // "the red ball", "Anna"
  std::string_view link = {};  // "belongs to"; may be empty

  std::string words() const {
    return link.empty() ? fmt::format("{} {}", subject, value)
                        : fmt::format("{} {} {}", subject, link, value);
  }
};

struct Statements {
  std::vector<std::string_view> links;  // as many as there may be statements
  Statement (*draw)(Teller& t);         // without its link, of either split
  std::vector<std::string_view> one;    // questions about {0}, a subject
  std::string_view several;             // a question about {0}, a list of subjects
};

// Two to four statements and some questions. What is asked is drawn anew each time: if everything were asked
// once, the last answer would be what is left over, and a model would learn to see that instead of reading.
Scene tell_and_ask(Teller& t, Statements statements);

}  // namespace thimble::sample
