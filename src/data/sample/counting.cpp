// Counting aloud, and counting who is there.
#include <cstdlib>

#include "data/sample/facts.h"
#include "data/sample/scene.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

constexpr int kHighest = 12;  // that is counted to aloud

Scene count_aloud(Teller& t) {
  for (;;) {
    const int from = t.number(1, kHighest), to = t.number(1, kHighest);
    const int steps = std::abs(to - from);
    if (steps < 2 || steps > 6 || !t.tell(count_aloud_fact(from, to))) continue;
    std::string answer;
    for (int i = 0; i <= steps; ++i) answer += (i > 0 ? ", " : "") + number_word(from + (to > from ? i : -i));
    Scene scene;
    scene.ask(t.say({"Count from {0} to {1}.", "Can you count from {0} to {1}?"}, number_word(from),
                    number_word(to)),
              capitalised(answer) + ".");
    return scene;
  }
}

Scene count_animals(Teller& t) {
  for (;;) {
    const Place& place = t.pick(kPlaces);
    std::vector<std::string_view> animals;
    for (const Animal& animal : kAnimals) animals.push_back(animal.name);
    t.shuffle(animals);
    animals.resize(static_cast<std::size_t>(t.number(2, 5)));

    if (!t.tell(group_fact(place, animals))) continue;

    std::vector<std::string> guests;
    for (std::string_view animal : animals) guests.push_back(with_article(animal));
    Scene scene;
    scene.tell(fmt::format("{} are {}.", capitalised(listed(guests)), place.where()));
    scene.ask(t.say({"How many animals are {0}?", "How many animals do you count {0}?"}, place.where()),
              fmt::format("There are {} animals {}.", number_word(static_cast<int>(animals.size())),
                          place.where()));
    return scene;
  }
}

}  // namespace

Scene counting(Teller& t) {
  return t.one_in(3) ? count_animals(t) : count_aloud(t);
}

}  // namespace thimble::sample
