// Who has the red ball, and what colour is the kite?
#include "data/sample/facts.h"
#include "data/sample/statements.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

Statement draw_belonging(Teller& t) {
  const Person& owner = t.pick(kPeople);
  const std::string_view colour = t.pick(kColours), thing = t.pick(kThings);
  return {.fact = has_fact(owner, colour, thing),
          .subject = fmt::format("the {} {}", colour, thing),
          .value = std::string(owner.name)};
}

Statement draw_colour(Teller& t) {
  const std::string_view colour = t.pick(kColours), thing = t.pick(kThings);
  return {.fact = colour_fact(thing, colour),
          .subject = fmt::format("the {}", thing),
          .value = std::string(colour)};
}

}  // namespace

Scene belongings(Teller& t) {
  return tell_and_ask(t, {.links = {"belongs to", "stays with", "lies beside", "waits for"},
                          .draw = draw_belonging,
                          .one = {"Who has {0}?", "Who has got {0}?", "Do you know who has {0}?"},
                          .several = "Who has {0}?"});
}

Scene colours(Teller& t) {
  return tell_and_ask(
      t, {.links = {"looks", "seems", "shines", "glows"},
          .draw = draw_colour,
          .one = {"What colour is {0}?", "Which colour is {0}?", "Do you know the colour of {0}?"},
          .several = "What colours are {0}?"});
}

}  // namespace thimble::sample
