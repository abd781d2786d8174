// Who is where: people and animals, each near a town of their own.
#include "data/sample/facts.h"
#include "data/sample/statements.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

Statement draw_stay(Teller& t) {
  const std::string who = draw_being(t);
  const std::string_view town = t.pick(kTowns);
  return {.fact = town_fact(who, town), .subject = who, .value = std::string(town)};
}

}  // namespace

Scene whereabouts(Teller& t) {
  return tell_and_ask(t, {.links = {"lives in", "works near", "waits outside", "sleeps beyond"},
                          .draw = draw_stay,
                          .one = {"Where is {0}?", "Where can I find {0}?", "Do you know where {0} is?"},
                          .several = "Where are {0}?"});
}

}  // namespace thimble::sample
