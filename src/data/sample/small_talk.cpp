// What people say to be friendly.
#include "data/sample/scene.h"
#include "data/sample/world.h"

namespace thimble::sample {

Exchange greeting(Teller& t) {
  static constexpr auto kGreetings = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"Hello!", "Hello! What would you like to know?"},
      {"Hi!", "Hi! Ask me something."},
      {"Good morning!", "Good morning! How can I help?"},
      {"Good evening!", "Good evening! How can I help?"},
      {"Can I ask you something?", "Of course. I like questions."},
  });
  const auto& [hello, reply] = t.pick(kGreetings);
  return {std::string(hello), std::string(reply)};
}

Exchange small_talk(Teller& t) {
  static constexpr auto kTalk = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"How are you?", "I am well, thank you. And you?"},
      {"How are you today?", "I am well, thank you. And you?"},
      {"Thank you!", "You are welcome."},
      {"Thanks!", "You are welcome."},
      {"That is right.", "I am glad to hear it."},
      {"Well done!", "Thank you! That is kind of you."},
      {"Who are you?", "I am a very small language model."},
      {"What are you?", "I am a very small language model."},
      {"Where do you live?", "I live in a thimble."},
      {"What can you do?", "I can count, compare and remember who has what."},
      {"Do you like stories?", "Yes, the shorter the better."},
      {"Goodbye!", "Goodbye! Come back soon."},
      {"Good night!", "Good night! Sleep well."},
  });
  if (t.one_in(3)) {
    const Animal& animal = *t.pick_if(kAnimals, [](const Animal& a) { return !a.says.empty(); });
    return {t.say({"What does {0} say?", "What sound does {0} make?"}, with_article(animal.name)),
            fmt::format("{} says {}.", capitalised(with_article(animal.name)), animal.says)};
  }
  const auto& [said, reply] = t.pick(kTalk);
  return {std::string(said), std::string(reply)};
}

}  // namespace thimble::sample
