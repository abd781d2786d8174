#include "data/sample/chats.h"

#include "base/json.h"

namespace thimble::sample {

namespace {

// A quarter are the shortest stories: once a model can look things up in those, it can in all the others.
struct Kind {
  Scene (*scene)(Teller&);
  int weight;  // of 16
};

constexpr auto kKinds = std::to_array<Kind>({{doings, 4},
                                             {belongings, 2},
                                             {colours, 1},
                                             {whereabouts, 1},
                                             {sums, 2},
                                             {handfuls, 2},
                                             {counting, 2},
                                             {comparisons, 1},
                                             {acquaintance, 1}});

const Kind& draw_kind(Teller& t) {
  int at = t.number(0, 15);
  for (const Kind& kind : kKinds) {
    at -= kind.weight;
    if (at < 0) return kind;
  }
  return kKinds.back();
}

void add(Scene scene, std::vector<Exchange>& exchanges) {
  if (!scene.story.empty())
    scene.exchanges.front().question = scene.story + " " + scene.exchanges.front().question;
  exchanges.insert(exchanges.end(), scene.exchanges.begin(), scene.exchanges.end());
}

}  // namespace

Chat make_chat(Split split, std::uint64_t seed, std::uint64_t index) {
  Teller t(split, seed, index);
  Chat chat;
  const bool training = split == Split::train;
  const bool only_talk = training && t.one_in(16);
  if (t.one_in(8)) chat.exchanges.push_back(greeting(t));
  if (!only_talk) add(draw_kind(t).scene(t), chat.exchanges);
  if (only_talk || (training && t.one_in(16))) chat.exchanges.push_back(small_talk(t));
  chat.facts = t.told();
  return chat;
}

std::string Chat::json() const {
  Json messages = Json::array();
  for (const Exchange& exchange : exchanges) {
    messages.push(Json::object().set("role", "user").set("content", exchange.question));
    messages.push(Json::object().set("role", "assistant").set("content", exchange.answer));
  }
  return Json::object().set("messages", std::move(messages)).dump();
}

std::string Chat::prompt() const {
  std::string text;
  for (const Exchange& exchange : exchanges) {
    text += exchange.question + "\n";
    if (&exchange != &exchanges.back()) text += exchange.answer + "\n";
  }
  return text;
}

}  // namespace thimble::sample
