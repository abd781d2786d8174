// Who does what.
#include "data/sample/facts.h"
#include "data/sample/statements.h"
#include "data/sample/world.h"

namespace thimble::sample {

namespace {

Statement draw_doing(Teller& t) {
  for (;;) {
    const std::string who = draw_being(t);
    const std::string_view deed = t.pick(kDeeds);
    if (t.tell(does_fact(who, deed))) return {.subject = who, .link = {}, .value = std::string(deed)};
  }
}

Statement draw_liking(Teller& t) {
  for (;;) {
    const std::string who = draw_being(t);
    const Good& good = t.pick(kGoods);
    if (t.tell(good_fact(who, good)))
      return {.subject = who, .link = {}, .value = fmt::format("{}s", good.name)};
  }
}

}  // namespace

Scene doings(Teller& t) {
  if (!t.one_in(4))
    return tell_and_ask(t, {.links = {"", "", "", ""},
                            .draw = draw_doing,
                            .one = {"What does {0} do?", "Do you know what {0} does?"},
                            .several = "What do {0} do?"});
  return tell_and_ask(t, {.links = {"sells", "wants", "draws", "hides"},
                          .draw = draw_liking,
                          .one = {"What does {0} do?", "Do you know what {0} does?"},
                          .several = "What do {0} do?"});
}

}  // namespace thimble::sample
