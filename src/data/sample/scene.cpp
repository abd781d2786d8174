#include "data/sample/scene.h"

#include "data/sample/world.h"

namespace thimble::sample {

void keep_some(Teller& t, std::vector<Exchange>& exchanges) {
  t.shuffle(exchanges);
  if (t.split() == Split::heldout)
    exchanges.resize(static_cast<std::size_t>(t.number(1, static_cast<int>(exchanges.size()))));
}

std::string draw_being(Teller& t) {
  return t.one_in(4) ? fmt::format("the {}", t.pick(kAnimals).name) : std::string(t.pick(kPeople).name);
}

}  // namespace thimble::sample
