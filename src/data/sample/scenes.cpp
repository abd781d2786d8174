#include "data/sample/scenes.h"

#include <algorithm>
#include <cstdlib>

#include "data/sample/world.h"

namespace thimble::sample {

void keep_some(DocumentWriter& t, std::vector<Exchange>& exchanges) {
  t.shuffle(exchanges);
  if (t.split() == Split::heldout)
    exchanges.resize(static_cast<std::size_t>(t.number(1, static_cast<int>(exchanges.size()))));
}

std::string draw_being(DocumentWriter& t) {
  return t.one_in(4) ? fmt::format("the {}", t.pick(kAnimals).name) : std::string(t.pick(kPeople).name);
}

namespace {

// The last word, which precedes the link: "ball" of "the red ball".
std::string_view last_word(std::string_view words) {
  return words.substr(words.rfind(' ') + 1);
}

std::vector<Statement> draw_statements(DocumentWriter& t, Statements& statements) {
  const auto count = static_cast<std::size_t>(t.number(2, static_cast<int>(statements.links.size())));
  t.shuffle(statements.links);
  std::vector<Statement> all;
  while (all.size() < count) {
    Statement next = statements.draw(t);
    const bool taken = std::ranges::any_of(all, [&](const Statement& other) {
      return last_word(other.subject) == last_word(next.subject) || other.value == next.value;
    });
    if (taken || !t.use_fact(next.fact)) continue;
    next.link = statements.links[all.size()];
    all.push_back(std::move(next));
  }
  return all;
}

void ask_for_one(DocumentWriter& t, const Statements& statements, const Statement& one, Scene& scene) {
  scene.ask(fmt::format(fmt::runtime(t.pick(statements.one)), one.subject), capitalized(one.words()) + ".");
}

void ask_for_several(DocumentWriter& t, const Statements& statements, std::vector<Statement> all,
                     Scene& scene) {
  t.shuffle(all);
  all.resize(static_cast<std::size_t>(t.number(2, static_cast<int>(all.size()))));
  std::vector<std::string> subjects, words;
  for (const Statement& statement : all) {
    subjects.push_back(statement.subject);
    words.push_back(statement.words());
  }
  scene.ask(fmt::format(fmt::runtime(statements.several), listed(subjects)),
            capitalized(listed(words)) + ".");
}

}  // namespace

Scene statements_with_questions(DocumentWriter& t, Statements statements) {
  const std::vector<Statement> all = draw_statements(t, statements);
  Scene scene;
  for (const Statement& statement : all) scene.add(capitalized(statement.words()) + ".");
  // The training split uses each story for three questions. Held-out chats ask one to three.
  for (int questions = t.split() == Split::train ? 3 : t.number(1, 3); questions > 0; --questions) {
    if (t.one_in(2))
      ask_for_several(t, statements, all, scene);
    else
      ask_for_one(t, statements, t.pick(all), scene);
  }
  return scene;
}

// The user tells a name and a preference, and asks for them later.

Scene introductions(DocumentWriter& t) {
  for (;;) {
    const Person& who = t.pick(kPeople);
    const std::string_view liked = t.pick(kThings), colour = t.pick(kColours);
    if (!t.use_fact(likes_fact(who, colour, liked))) continue;
    Scene scene;
    scene.ask(t.say({"Hello, I am {0}. I like {1} {2}s.", "My name is {0} and I like {1} {2}s.",
                     "Hi, my name is {0}. I like {1} {2}s best."},
                    who.name, colour, liked),
              fmt::format("Nice to meet you, {}!", who.name));
    std::vector<Exchange> later = {{t.say({"What is my name?", "Do you remember my name?", "Who am I?"}),
                                    fmt::format("Your name is {}.", who.name)},
                                   {t.say({"What do I like?", "Do you know what I like?"}),
                                    fmt::format("You like {} {}s.", colour, liked)}};
    keep_some(t, later);
    scene.exchanges.insert(scene.exchanges.end(), later.begin(), later.end());
    return scene;
  }
}

// Who has the red ball, and what colour is the kite?

namespace {

Statement draw_belonging(DocumentWriter& t) {
  const Person& owner = t.pick(kPeople);
  const std::string_view colour = t.pick(kColours), thing = t.pick(kThings);
  return {.fact = has_fact(owner, colour, thing),
          .subject = fmt::format("the {} {}", colour, thing),
          .value = std::string(owner.name)};
}

Statement draw_colour(DocumentWriter& t) {
  const std::string_view colour = t.pick(kColours), thing = t.pick(kThings);
  return {.fact = colour_fact(thing, colour),
          .subject = fmt::format("the {}", thing),
          .value = std::string(colour)};
}

}  // namespace

Scene belongings(DocumentWriter& t) {
  return statements_with_questions(t,
                                   {.links = {"belongs to", "stays with", "lies beside", "waits for"},
                                    .draw = draw_belonging,
                                    .one = {"Who has {0}?", "Who has got {0}?", "Do you know who has {0}?"},
                                    .several = "Who has {0}?"});
}

Scene colours(DocumentWriter& t) {
  return statements_with_questions(
      t, {.links = {"looks", "seems", "shines", "glows"},
          .draw = draw_colour,
          .one = {"What colour is {0}?", "Which colour is {0}?", "Do you know the colour of {0}?"},
          .several = "What colours are {0}?"});
}

// Bigger and smaller, taller and shorter.

namespace {

Scene which_is_bigger(DocumentWriter& t) {
  for (;;) {
    const Animal &one = t.pick(kAnimals), &other = t.pick(kAnimals);
    if (one.size == other.size) continue;
    const auto [small, big] = one.size < other.size ? std::pair(&one, &other) : std::pair(&other, &one);
    if (!t.use_fact(size_fact(one, other))) continue;
    const bool bigger = t.one_in(2);
    const Animal *is = bigger ? big : small, *than = bigger ? small : big;
    Scene scene;
    scene.ask(t.say({"Which is {2}, {0} or {1}?", "What is {2}, {0} or {1}?"}, with_article(one.name),
                    with_article(other.name), bigger ? "bigger" : "smaller"),
              fmt::format("{} is {} than {}.", capitalized(with_article(is->name)),
                          bigger ? "bigger" : "smaller", with_article(than->name)));
    return scene;
  }
}

// Three people in order of height: who is tallest, who is shortest?
Scene who_is_tallest(DocumentWriter& t) {
  for (;;) {
    const Person &tall = t.pick(kPeople), &middle = t.pick(kPeople), &small = t.pick(kPeople);
    if (&tall == &middle || &middle == &small || &tall == &small) continue;
    if (!t.may_use(height_fact(tall, middle)) || !t.may_use(height_fact(middle, small))) continue;
    t.use_fact(height_fact(tall, middle));
    t.use_fact(height_fact(middle, small));
    Scene scene;
    scene.add(t.say({"{0} is taller than {1}. {1} is taller than {2}.",
                     "{2} is shorter than {1}. {1} is shorter than {0}."},
                    tall.name, middle.name, small.name));
    for (const auto& [who, what] : {std::pair(&tall, "tallest"), std::pair(&small, "shortest")})
      scene.ask(t.say({"Who is the {0}?", "Do you know who is the {0}?"}, what),
                fmt::format("{} is the {}.", who->name, what));
    keep_some(t, scene.exchanges);
    return scene;
  }
}

}  // namespace

Scene comparisons(DocumentWriter& t) {
  return t.one_in(2) ? which_is_bigger(t) : who_is_tallest(t);
}

// Counting aloud, and counting animals.

namespace {

constexpr int kHighest = 12;  // largest number in counting aloud

Scene count_aloud(DocumentWriter& t) {
  for (;;) {
    const int from = t.number(1, kHighest), to = t.number(1, kHighest);
    const int steps = std::abs(to - from);
    if (steps < 2 || steps > 6 || !t.use_fact(count_aloud_fact(from, to))) continue;
    std::string answer;
    for (int i = 0; i <= steps; ++i) answer += (i > 0 ? ", " : "") + number_word(from + (to > from ? i : -i));
    Scene scene;
    scene.ask(t.say({"Count from {0} to {1}.", "Can you count from {0} to {1}?"}, number_word(from),
                    number_word(to)),
              capitalized(answer) + ".");
    return scene;
  }
}

Scene count_animals(DocumentWriter& t) {
  for (;;) {
    const Place& place = t.pick(kPlaces);
    std::vector<std::string_view> animals;
    for (const Animal& animal : kAnimals) animals.push_back(animal.name);
    t.shuffle(animals);
    animals.resize(static_cast<std::size_t>(t.number(2, 5)));

    if (!t.use_fact(group_fact(place, animals))) continue;

    std::vector<std::string> guests;
    for (std::string_view animal : animals) guests.push_back(with_article(animal));
    Scene scene;
    scene.add(fmt::format("{} are {}.", capitalized(listed(guests)), place.where()));
    scene.ask(t.say({"How many animals are {0}?", "How many animals do you count {0}?"}, place.where()),
              fmt::format("There are {} animals {}.", number_word(static_cast<int>(animals.size())),
                          place.where()));
    return scene;
  }
}

}  // namespace

Scene counting(DocumentWriter& t) {
  return t.one_in(3) ? count_animals(t) : count_aloud(t);
}

// Who does what?

namespace {

Statement draw_occupation(DocumentWriter& t) {
  const std::string who = draw_being(t);
  const std::string_view deed = t.pick(kDeeds);
  return {.fact = does_fact(who, deed), .subject = who, .value = std::string(deed)};
}

Statement draw_trade(DocumentWriter& t) {
  const std::string who = draw_being(t);
  const Good& good = t.pick(kGoods);
  return {.fact = good_fact(who, good), .subject = who, .value = fmt::format("{}s", good.name)};
}

}  // namespace

// Mostly statements of two words: these teach looking up facts, which longer stories require.
Scene occupations(DocumentWriter& t) {
  const bool trades = t.one_in(4);
  return statements_with_questions(
      t, {.links = trades ? std::vector<std::string_view>{"sells", "wants", "draws", "hides"}
                          : std::vector<std::string_view>(4),
          .draw = trades ? draw_trade : draw_occupation,
          .one = {"What does {0} do?", "Do you know what {0} does?"},
          .several = "What do {0} do?"});
}

// Two people have some of the same goods: how many together, and who has more?

namespace {

constexpr int kMost = kLargestNumber / 2 - 1;

struct Amount {
  const Person* who;
  int count;

  std::string fact(const Good& good) const { return count_fact(*who, count, good); }
};

void ask_together(DocumentWriter& t, const Amount& one, const Amount& other, const Good& good, Scene& scene) {
  scene.ask(t.say({"How many {0}s do they have together?", "How many {0}s do {1} and {2} have together?"},
                  good.name, one.who->name, other.who->name),
            fmt::format("Together they have {}.", counted(one.count + other.count, good.name)));
}

// The answer gives the reason first, because a small model must compare before it names the owner.
void ask_who(DocumentWriter& t, std::string_view more, const Amount& winner, const Amount& loser,
             const Good& good, Scene& scene) {
  scene.ask(t.say({"Who has {0} {1}s?", "Which of them has {0} {1}s?"}, more, good.name),
            fmt::format("{} is {} than {}, so {} has {} {}s.", capitalized(number_word(winner.count)), more,
                        number_word(loser.count), winner.who->name, more, good.name));
}

}  // namespace

Scene amounts(DocumentWriter& t) {
  for (;;) {
    const Good& good = t.pick(kGoods);
    const Amount one{&t.pick(kPeople), t.number(1, kMost)}, other{&t.pick(kPeople), t.number(1, kMost)};
    if (one.who == other.who || !t.may_use(one.fact(good)) || !t.may_use(other.fact(good))) continue;
    t.use_fact(one.fact(good));
    t.use_fact(other.fact(good));
    Scene scene;
    for (const Amount& amount : {one, other})
      scene.add(fmt::format("{} has {}.", amount.who->name, counted(amount.count, good.name)));
    ask_together(t, one, other, good, scene);
    if (one.count != other.count) {
      const auto& [many, few] = one.count > other.count ? std::pair(one, other) : std::pair(other, one);
      ask_who(t, "more", many, few, good, scene);
      ask_who(t, "fewer", few, many, good, scene);
    }
    keep_some(t, scene.exchanges);
    return scene;
  }
}

// Greetings and small talk.

Exchange greeting(DocumentWriter& t) {
  static constexpr auto kGreetings = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"Hello!", "Hello! What would you like to know?"},
      {"Hi!", "Hi! Ask me something."},
      {"Good morning!", "Good morning! How can I help?"},
      {"Good evening!", "Good evening! How can I help?"},
      {"Can I ask you something?", "Of course. I like questions."},
  });
  const auto& [hello, reply] = t.pick(kGreetings);
  return {std::string(hello), std::string(reply)};
}

Exchange small_talk(DocumentWriter& t) {
  static constexpr auto kTalk = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"How are you?", "I am well, thank you. And you?"},
      {"How are you today?", "I am well, thank you. And you?"},
      {"Thank you!", "You are welcome."},
      {"Thanks!", "You are welcome."},
      {"That is right.", "I am glad to hear it."},
      {"Well done!", "Thank you! That is kind of you."},
      {"Who are you?", "I am a very small language model."},
      {"What are you?", "I am a very small language model."},
      {"Where do you live?", "I live in a thimble."},
      {"What can you do?", "I can count, compare and remember who has what."},
      {"Do you like stories?", "Yes, the shorter the better."},
      {"Goodbye!", "Goodbye! Come back soon."},
      {"Good night!", "Good night! Sleep well."},
  });
  if (t.one_in(3)) {
    const Animal& animal = *t.pick_if(kAnimals, [](const Animal& a) { return !a.says.empty(); });
    return {t.say({"What does {0} say?", "What sound does {0} make?"}, with_article(animal.name)),
            fmt::format("{} says {}.", capitalized(with_article(animal.name)), animal.says)};
  }
  const auto& [said, reply] = t.pick(kTalk);
  return {std::string(said), std::string(reply)};
}

// Small sums: a person has some goods, and gets or loses a few.

namespace {

constexpr int kMostAtFirst = 9;  // largest number at first
constexpr int kChange = 5;       // largest number gained or lost

}  // namespace

Scene sums(DocumentWriter& t) {
  for (;;) {
    const Person& who = t.pick(kPeople);
    const Good& good = t.pick(kGoods);
    const int had = t.number(1, kMostAtFirst), change = t.number(1, kChange);
    const bool more = had <= change || t.one_in(2);
    if (!t.use_fact(sum_fact(who, good, had, more ? change : -change))) continue;
    Scene scene;
    scene.add(fmt::format("{} has {}.", who.name, counted(had, good.name)));
    const std::string she = capitalized(who.pronoun()), some = number_word(change);
    if (more)
      scene.add(t.say({"{0} finds {1} more.", "{0} gets {1} more.", "Then {2} brings {1} more."}, she, some,
                      who.pronoun()));
    else
      scene.add(
          t.say({"{0} loses {1}.", "{0} gives {1} away.", good.edible ? "{0} eats {1}." : "{0} drops {1}."},
                she, some));
    scene.ask(t.say({"How many {0}s does {1} have now?", "How many {0}s does {2} have now?"}, good.name,
                    who.name, who.pronoun()),
              fmt::format("{} has {}.", who.name, counted(more ? had + change : had - change, good.name)));
    return scene;
  }
}

// Who is where: people and animals, each at a different town.

namespace {

Statement draw_stay(DocumentWriter& t) {
  const std::string who = draw_being(t);
  const std::string_view town = t.pick(kTowns);
  return {.fact = town_fact(who, town), .subject = who, .value = std::string(town)};
}

}  // namespace

Scene whereabouts(DocumentWriter& t) {
  return statements_with_questions(
      t, {.links = {"lives in", "works near", "waits outside", "sleeps beyond"},
          .draw = draw_stay,
          .one = {"Where is {0}?", "Where can I find {0}?", "Do you know where {0} is?"},
          .several = "Where are {0}?"});
}

}  // namespace thimble::sample
