#include "data/sample/corpus.h"

#include <string>
#include <unordered_set>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "data/sample/scenes.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

constexpr std::size_t kWriteBytes = 1 << 20;
// After this many repeated prompts in succession, the split counts as exhausted.
constexpr std::uint64_t kMaxRepeats = 10'000;

struct Document {
  std::string text;
  std::string asks;  // must be unique among held-out documents
};

Document make_document(const CorpusOptions& options, std::uint64_t index) {
  if (options.kind == CorpusKind::tales) {
    std::string text = make_tale(options.split, options.seed, index).text;
    return {text + "\n<|endoftext|>\n", text};
  }
  const Chat chat = make_chat(options.split, options.seed, index);
  return {chat.json() + "\n", chat.prompt()};
}

}  // namespace

CorpusSize write_corpus(const CorpusOptions& options, const std::function<void(std::string_view)>& write) {
  check(options.count > 0 || options.bytes > 0, "[sample] expected a limit on documents or bytes");
  CorpusSize size;
  std::string buffer;
  std::unordered_set<std::uint64_t> asked;
  const auto done = [&] {
    return (options.count > 0 && size.documents >= options.count) ||
           (options.bytes > 0 && size.bytes >= options.bytes);
  };
  for (std::uint64_t index = 0, repeats = 0; !done(); ++index) {
    const Document document = make_document(options, index);
    if (options.split == Split::heldout && !asked.insert(digest_of(document.asks).low).second) {
      check(++repeats < kMaxRepeats, Hint{"request fewer documents"},
            "the held-out split has only {} different documents", size.documents);
      continue;
    }
    repeats = 0;
    buffer += document.text;
    size.bytes += document.text.size();
    ++size.documents;
    if (buffer.size() >= kWriteBytes) {
      write(buffer);
      buffer.clear();
    }
  }
  if (!buffer.empty()) write(buffer);
  return size;
}

namespace {

// The state of a tale: its characters and what has been told so far.
struct Plot {
  DocumentWriter& t;
  const Person* hero;
  const Person* friend_of_hero;
  const Place* place;  // where both are now
  std::string_view colour, thing;
  std::string text;

  std::string item() const { return fmt::format("{} {}", colour, thing); }
  void add(const std::string& sentence) { text += (text.empty() ? "" : " ") + sentence; }
};

void begin(Plot& p) {
  DocumentWriter& t = p.t;
  for (;;) {
    p.hero = &t.pick(kPeople);
    p.friend_of_hero = &t.pick(kPeople);
    p.place = &t.pick(kPlaces);
    p.colour = t.pick(kColours);
    p.thing = t.pick(kThings);
    const std::string has = has_fact(*p.hero, p.colour, p.thing);
    const std::string here = at_fact(p.hero->name, *p.place),
                      there = at_fact(p.friend_of_hero->name, *p.place);
    if (p.hero == p.friend_of_hero || !t.may_use(has) || !t.may_use(here) || !t.may_use(there)) continue;
    for (const std::string& fact : {has, here, there}) t.use_fact(fact);
    break;
  }
  const std::string she = capitalized(p.hero->pronoun());
  p.add(t.say({"One morning {0} went to the {1}.", "One day {0} walked to the {1}.",
               "Early in the evening {0} ran to the {1}.", "When the sun came out, {0} went to the {1}."},
              p.hero->name, p.place->name));
  p.add(t.say({"{0} had {1} with {2}.", "{0} took {1} along.", "{0} carried {1}."}, she,
              with_article(p.item()), p.hero->she ? "her" : "him"));
}

void meet(Plot& p) {
  p.add(p.t.say({"{0} was there already.", "{1} the {3} sat {0}.", "There {2} met {0}."},
                p.friend_of_hero->name, capitalized(p.place->preposition), p.hero->pronoun(), p.place->name));
  p.add(p.t.say({"\"What have you got there?\" asked {0}. \"{2},\" said {1}. \"Do you like it?\"",
                 "\"Hello, {1}!\" said {0}. \"Is that {3}?\" \"Yes,\" said {1}, \"it is new.\"",
                 "\"May I hold the {4}?\" asked {0}. \"Of course,\" said {1}."},
                p.friend_of_hero->name, p.hero->name, capitalized(with_article(p.item())),
                with_article(p.item()), p.thing));
}

// The hero finds some goods and eats a few of them.
void share(Plot& p) {
  DocumentWriter& t = p.t;
  const Good& good = *t.pick_if(kGoods, [](const Good& candidate) { return candidate.edible; });
  const int found = t.number(3, 9), eaten = t.number(1, 2);
  if (!t.use_fact(sum_fact(*p.hero, good, found, -eaten))) return;
  p.add(t.say({"Behind a stone {0} found {1}.", "Then {0} saw {1} in the grass."}, p.hero->name,
              counted(found, good.name)));
  const int left = found - eaten;
  p.add(fmt::format("{} ate {}, and {} {} left.", capitalized(p.hero->pronoun()), number_word(eaten),
                    number_word(left), left == 1 ? "was" : "were"));
}

void see_an_animal(Plot& p) {
  DocumentWriter& t = p.t;
  const Animal* animal = t.pick_if(kAnimals, [&](const Animal& candidate) {
    return !candidate.says.empty() && t.may_use(at_fact(fmt::format("the {}", candidate.name), *p.place));
  });
  if (!animal) return;
  t.use_fact(at_fact(fmt::format("the {}", animal->name), *p.place));
  p.add(t.say({"{0} came along and said {1}.", "Suddenly somebody said {1}. It was {2}."},
              capitalized(with_article(animal->name)), animal->says, with_article(animal->name)));
  const Animal* other = t.pick_if(kAnimals, [&](const Animal& candidate) {
    return candidate.size < animal->size && t.may_use(size_fact(candidate, *animal));
  });
  if (!other) return;
  t.use_fact(size_fact(*other, *animal));
  p.add(t.say({"\"It is bigger than {0},\" said {1}.", "\"Look, it is bigger than {0}!\" said {1}."},
              with_article(other->name), p.friend_of_hero->name));
}

void run_from_rain(Plot& p) {
  DocumentWriter& t = p.t;
  const Place* next = t.pick_if(kPlaces, [&](const Place& place) {
    return &place != p.place && t.may_use(at_fact(p.hero->name, place)) &&
           t.may_use(at_fact(p.friend_of_hero->name, place));
  });
  if (!next) return;
  for (const Person* who : {p.hero, p.friend_of_hero}) t.use_fact(at_fact(who->name, *next));
  p.place = next;
  p.add(t.say({"Then it began to rain, and they ran to the {0}.", "It grew cold, so they went on to the {0}.",
               "\"Let us go to the {0},\" said {1}, and off they went."},
              next->name, p.friend_of_hero->name));
}

void end(Plot& p) {
  DocumentWriter& t = p.t;
  if (t.one_in(2) && t.use_fact(has_fact(*p.friend_of_hero, p.colour, p.thing))) {
    p.add(t.say({"In the evening {0} gave the {2} to {1}.", "Before they went home, {0} gave {1} the {2}."},
                p.hero->name, p.friend_of_hero->name, p.thing));
    p.add(fmt::format("Now {1} has {2}, and {0} has a friend.", p.hero->name, p.friend_of_hero->name,
                      with_article(p.item())));
    return;
  }
  p.add(t.say({"They played with the {2} until it was dark.", "They stayed until the stars came out.",
               "Then {0} took the {2} and went home, and {1} waved.", "It was a good day."},
              p.hero->name, p.friend_of_hero->name, p.thing));
}

}  // namespace

Tale make_tale(Split split, std::uint64_t seed, std::uint64_t index) {
  DocumentWriter t(split, seed, index);
  Plot p{.t = t,
         .hero = nullptr,
         .friend_of_hero = nullptr,
         .place = nullptr,
         .colour = {},
         .thing = {},
         .text = {}};
  begin(p);
  meet(p);
  std::vector<void (*)(Plot&)> middle = {share, see_an_animal, run_from_rain};
  t.shuffle(middle);
  middle.resize(static_cast<std::size_t>(t.number(1, 2)));
  for (const auto part : middle) part(p);
  end(p);
  return {std::move(p.text), t.facts_used()};
}

namespace {

// A quarter are the shortest stories: they teach looking up facts, which all other stories require.
struct Kind {
  Scene (*scene)(DocumentWriter&);
  int weight;  // of 16
};

constexpr auto kKinds = std::to_array<Kind>({{occupations, 4},
                                             {belongings, 2},
                                             {colours, 1},
                                             {whereabouts, 1},
                                             {sums, 2},
                                             {amounts, 2},
                                             {counting, 2},
                                             {comparisons, 1},
                                             {introductions, 1}});

const Kind& draw_kind(DocumentWriter& t) {
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
  DocumentWriter t(split, seed, index);
  Chat chat;
  const bool training = split == Split::train;
  const bool only_talk = training && t.one_in(16);
  if (t.one_in(8)) chat.exchanges.push_back(greeting(t));
  if (!only_talk) add(draw_kind(t).scene(t), chat.exchanges);
  if (only_talk || (training && t.one_in(16))) chat.exchanges.push_back(small_talk(t));
  chat.facts = t.facts_used();
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
