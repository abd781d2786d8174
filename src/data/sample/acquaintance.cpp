// Somebody says who they are and what they like, and asks for it later.
#include "data/sample/facts.h"
#include "data/sample/scene.h"
#include "data/sample/world.h"

namespace thimble::sample {

Scene acquaintance(Teller& t) {
  for (;;) {
    const Person& who = t.pick(kPeople);
    const std::string_view liked = t.pick(kThings), colour = t.pick(kColours);
    if (!t.tell(likes_fact(who, colour, liked))) continue;
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

}  // namespace thimble::sample
