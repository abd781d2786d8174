// A DocumentWriter generates one document from facts of its split and records which facts it used.
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

class DocumentWriter {
 public:
  // Document `index` of a corpus. A document depends only on these three numbers.
  DocumentWriter(Split split, std::uint64_t seed, std::uint64_t index)
      : split_(split), rng_(seed, 0, 2 * index + (split == Split::heldout ? 1 : 0)) {}

  Split split() const { return split_; }
  const std::vector<std::string>& facts_used() const {
    return facts_used_;
  }  // every fact in the document so far

  int number(int least, int most) {
    const int choices = most - least + 1;
    return least + static_cast<int>(rng_.below(static_cast<std::uint64_t>(choices)));
  }
  bool one_in(std::uint64_t times) { return rng_.below(times) == 0; }
  template <class List>
  const auto& pick(const List& list) {
    return list[static_cast<std::size_t>(rng_.below(list.size()))];
  }
  // Picks one of several phrasings and fills in {0}, {1}, ...
  template <class... Args>
  std::string say(std::initializer_list<std::string_view> phrasings, const Args&... words) {
    return fmt::format(fmt::runtime(phrasings.begin()[rng_.below(phrasings.size())]), words...);
  }
  // Picks one of the items for which `fits` is true, or returns nullptr if there is none.
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

  bool may_use(std::string_view fact) const { return split_of(fact) == split_; }
  // Records the fact and returns true if it belongs to this split.
  bool use_fact(std::string fact) {
    if (!may_use(fact)) return false;
    facts_used_.push_back(std::move(fact));
    return true;
  }

 private:
  Split split_;
  Rng rng_;
  std::vector<std::string> facts_used_;
};

// A scene: a short story and questions about it, each with exactly one correct answer.
//
// Answers are complete sentences that follow from the story and the wording of the question, so
// that an exact match can be required. Answers about general knowledge (which animal is bigger,
// what comes after seven) follow from the training split.
struct Exchange {
  std::string question, answer;
};

struct Scene {
  std::string story;  // empty: the questions need no story
  std::vector<Exchange> exchanges;

  void add(const std::string& sentence) { story += (story.empty() ? "" : " ") + sentence; }
  void ask(std::string question, std::string answer) {
    exchanges.push_back({std::move(question), std::move(answer)});
  }
};

// Shuffles the exchanges. In the held-out split, keeps a random number of them, at least one.
void keep_some(DocumentWriter& t, std::vector<Exchange>& exchanges);

std::string draw_being(DocumentWriter& t);  // "Anna", "the cat"

Scene occupations(DocumentWriter& t);    // what does Anna do?
Scene belongings(DocumentWriter& t);     // who has the red ball?
Scene colours(DocumentWriter& t);        // what colour has the kite?
Scene whereabouts(DocumentWriter& t);    // where is the cat?
Scene sums(DocumentWriter& t);           // three apples and two more
Scene amounts(DocumentWriter& t);        // how many together, who has more?
Scene counting(DocumentWriter& t);       // from four to nine; how many animals?
Scene comparisons(DocumentWriter& t);    // bigger, smaller, tallest, shortest
Scene introductions(DocumentWriter& t);  // what is my name?

// Hello, thank you, what can you do: the same in both splits, so held-out chats never end with one.
Exchange greeting(DocumentWriter& t);
Exchange small_talk(DocumentWriter& t);

// Stories made of statements, with questions that are answered by one or several of them.
//
// No two statements of a story share a subject, a link or a value, so each word determines the
// statement that continues it. Copying the continuation of an earlier occurrence, which is what a
// small model learns first, is therefore enough to answer, even for unseen combinations.
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
  std::vector<std::string_view> links;   // the maximum number of statements is links.size()
  Statement (*draw)(DocumentWriter& t);  // returns one without its link, of either split
  std::vector<std::string_view> one;     // questions about {0}, a subject
  std::string_view several;              // a question about {0}, a list of subjects
};

// Two to four statements and some questions. Each question is drawn independently: if every
// statement were asked about exactly once, the last answer would be the one left over, and a model
// could learn that instead of reading the story.
Scene statements_with_questions(DocumentWriter& t, Statements statements);

}  // namespace thimble::sample
