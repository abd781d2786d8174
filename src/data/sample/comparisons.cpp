// Bigger and smaller, taller and shorter.
#include <algorithm>

#include "data/sample/facts.h"
#include "data/sample/scene.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

Scene which_is_bigger(Teller& t) {
  for (;;) {
    const Animal &one = t.pick(kAnimals), &other = t.pick(kAnimals);
    if (one.size == other.size) continue;
    const auto [small, big] = one.size < other.size ? std::pair(&one, &other) : std::pair(&other, &one);
    if (!t.tell(size_fact(one, other))) continue;
    const bool bigger = t.one_in(2);
    const Animal *is = bigger ? big : small, *than = bigger ? small : big;
    Scene scene;
    scene.ask(t.say({"Which is {2}, {0} or {1}?", "What is {2}, {0} or {1}?"}, with_article(one.name),
                    with_article(other.name), bigger ? "bigger" : "smaller"),
              fmt::format("{} is {} than {}.", capitalised(with_article(is->name)),
                          bigger ? "bigger" : "smaller", with_article(than->name)));
    return scene;
  }
}

// Three in a row, from one end to the other.
Scene who_is_tallest(Teller& t) {
  for (;;) {
    const Person &tall = t.pick(kPeople), &middle = t.pick(kPeople), &small = t.pick(kPeople);
    if (&tall == &middle || &middle == &small || &tall == &small) continue;
    if (!t.may_tell(height_fact(tall, middle)) || !t.may_tell(height_fact(middle, small))) continue;
    t.tell(height_fact(tall, middle));
    t.tell(height_fact(middle, small));
    Scene scene;
    scene.tell(t.say({"{0} is taller than {1}. {1} is taller than {2}.",
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

Scene comparisons(Teller& t) {
  return t.one_in(2) ? which_is_bigger(t) : who_is_tallest(t);
}

}  // namespace thimble::sample
