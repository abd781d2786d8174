// Two people with some of the same: how many together, and who has more.
#include "data/sample/facts.h"
#include "data/sample/scene.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

constexpr int kMost = kLargestNumber / 2 - 1;

struct Handful {
  const Person* who;
  int count;

  std::string fact(const Good& good) const { return count_fact(*who, count, good); }
};

void ask_together(Teller& t, const Handful& one, const Handful& other, const Good& good, Scene& scene) {
  scene.ask(t.say({"How many {0}s do they have together?", "How many {0}s do {1} and {2} have together?"},
                  good.name, one.who->name, other.who->name),
            fmt::format("Together they have {}.", counted(one.count + other.count, good.name)));
}

// The answer says why, which is also how a small model finds it: numbers first, then whose they are.
void ask_who(Teller& t, std::string_view more, const Handful& winner, const Handful& loser, const Good& good,
             Scene& scene) {
  scene.ask(t.say({"Who has {0} {1}s?", "Which of them has {0} {1}s?"}, more, good.name),
            fmt::format("{} is {} than {}, so {} has {} {}s.", capitalised(number_word(winner.count)), more,
                        number_word(loser.count), winner.who->name, more, good.name));
}

}  // namespace

Scene handfuls(Teller& t) {
  for (;;) {
    const Good& good = t.pick(kGoods);
    const Handful one{&t.pick(kPeople), t.number(1, kMost)}, other{&t.pick(kPeople), t.number(1, kMost)};
    if (one.who == other.who || !t.may_tell(one.fact(good)) || !t.may_tell(other.fact(good))) continue;
    t.tell(one.fact(good));
    t.tell(other.fact(good));
    Scene scene;
    for (const Handful& handful : {one, other})
      scene.tell(fmt::format("{} has {}.", handful.who->name, counted(handful.count, good.name)));
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

}  // namespace thimble::sample
