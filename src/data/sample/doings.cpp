// Who does what.
#include "data/sample/facts.h"
#include "data/sample/statements.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

Statement draw_doing(Teller& t) {
  const std::string who = draw_being(t);
  const std::string_view deed = t.pick(kDeeds);
  return {.fact = does_fact(who, deed), .subject = who, .value = std::string(deed)};
}

Statement draw_trade(Teller& t) {
  const std::string who = draw_being(t);
  const Good& good = t.pick(kGoods);
  return {.fact = good_fact(who, good), .subject = who, .value = fmt::format("{}s", good.name)};
}

}  // namespace

// Mostly two words: the shortest stories teach how to look things up, which the longer ones need as well.
Scene doings(Teller& t) {
  const bool trades = t.one_in(4);
  return tell_and_ask(t, {.links = trades ? std::vector<std::string_view>{"sells", "wants", "draws", "hides"}
                                          : std::vector<std::string_view>(4),
                          .draw = trades ? draw_trade : draw_doing,
                          .one = {"What does {0} do?", "Do you know what {0} does?"},
                          .several = "What do {0} do?"});
}

}  // namespace thimble::sample
