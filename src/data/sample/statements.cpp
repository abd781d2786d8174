#include "data/sample/statements.h"

#include <algorithm>

#include "data/sample/world.h"

namespace thimble::sample {

namespace {

// The word that a link follows: "ball" of "the red ball".
std::string_view last_word(std::string_view words) {
  return words.substr(words.rfind(' ') + 1);
}

std::vector<Statement> draw_statements(Teller& t, Statements& statements) {
  const auto count = static_cast<std::size_t>(t.number(2, static_cast<int>(statements.links.size())));
  t.shuffle(statements.links);
  std::vector<Statement> all;
  while (all.size() < count) {
    Statement next = statements.draw(t);
    const bool taken = std::ranges::any_of(all, [&](const Statement& other) {
      return last_word(other.subject) == last_word(next.subject) || other.value == next.value;
    });
    if (taken || !t.tell(next.fact)) continue;
    next.link = statements.links[all.size()];
    all.push_back(std::move(next));
  }
  return all;
}

void ask_for_one(Teller& t, const Statements& statements, const Statement& one, Scene& scene) {
  scene.ask(fmt::format(fmt::runtime(t.pick(statements.one)), one.subject), capitalised(one.words()) + ".");
}

void ask_for_several(Teller& t, const Statements& statements, std::vector<Statement> all, Scene& scene) {
  t.shuffle(all);
  all.resize(static_cast<std::size_t>(t.number(2, static_cast<int>(all.size()))));
  std::vector<std::string> subjects, words;
  for (const Statement& statement : all) {
    subjects.push_back(statement.subject);
    words.push_back(statement.words());
  }
  scene.ask(fmt::format(fmt::runtime(statements.several), listed(subjects)),
            capitalised(listed(words)) + ".");
}

}  // namespace

Scene tell_and_ask(Teller& t, Statements statements) {
  const std::vector<Statement> all = draw_statements(t, statements);
  Scene scene;
  for (const Statement& statement : all) scene.tell(capitalised(statement.words()) + ".");
  // Held out, one question is often all there is; training has more to gain from a story.
  for (int questions = t.split() == Split::train ? 3 : t.number(1, 3); questions > 0; --questions) {
    if (t.one_in(2))
      ask_for_several(t, statements, all, scene);
    else
      ask_for_one(t, statements, t.pick(all), scene);
  }
  return scene;
}

}  // namespace thimble::sample
