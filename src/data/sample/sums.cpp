// Small sums: somebody has some, and gets or loses a few.
#include "data/sample/facts.h"
#include "data/sample/scene.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

constexpr int kMostAtFirst = 9;  // of what somebody has at first
constexpr int kChange = 5;       // and gets or loses

}  // namespace

Scene sums(Teller& t) {
  for (;;) {
    const Person& who = t.pick(kPeople);
    const Good& good = t.pick(kGoods);
    const int had = t.number(1, kMostAtFirst), change = t.number(1, kChange);
    const bool more = had <= change || t.one_in(2);
    if (!t.tell(sum_fact(who, good, had, more ? change : -change))) continue;
    Scene scene;
    scene.tell(fmt::format("{} has {}.", who.name, counted(had, good.name)));
    const std::string she = capitalised(who.pronoun()), some = number_word(change);
    if (more)
      scene.tell(t.say({"{0} finds {1} more.", "{0} gets {1} more.", "Then {2} brings {1} more."}, she, some,
                       who.pronoun()));
    else
      scene.tell(
          t.say({"{0} loses {1}.", "{0} gives {1} away.", good.edible ? "{0} eats {1}." : "{0} drops {1}."},
                she, some));
    scene.ask(t.say({"How many {0}s does {1} have now?", "How many {0}s does {2} have now?"}, good.name,
                    who.name, who.pronoun()),
              fmt::format("{} has {}.", who.name, counted(more ? had + change : had - change, good.name)));
    return scene;
  }
}

}  // namespace thimble::sample
