// A scene: a short story and questions about it, each with its one right answer.
//
// One file per kind of scene. Answers are whole sentences and follow from the story and the wording of the
// question, so that a model can be right to the letter; those about the world at large (which animal is
// bigger, what follows seven) follow from what the training split tells.
#pragma once

#include <string>
#include <vector>

#include "data/sample/teller.h"

namespace thimble::sample {

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

}  // namespace thimble::sample
