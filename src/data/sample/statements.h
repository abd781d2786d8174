// Stories made of statements, subject by subject, and questions that are answered by one of them or several.
//
// Within a story no two statements share a subject, a link or a value, so that each word says which one comes
// next: what a small model learns first (to go on as it went on before) is enough to answer, and to answer
// about combinations it has never met.
#pragma once

#include <string>
#include <vector>

#include "data/sample/scene.h"

namespace thimble::sample {

struct Statement {
  std::string fact;
  std::string subject, value;  // "the red ball", "Anna"
  std::string_view link = {};  // "belongs to"; may be empty

  std::string words() const {
    return link.empty() ? fmt::format("{} {}", subject, value)
                        : fmt::format("{} {} {}", subject, link, value);
  }
};

struct Statements {
  std::vector<std::string_view> links;  // as many as there may be statements
  Statement (*draw)(Teller& t);         // without its link, of either split
  std::vector<std::string_view> one;    // questions about {0}, a subject
  std::string_view several;             // a question about {0}, a list of subjects
};

// Two to four statements and some questions. What is asked is drawn anew each time: if everything were asked
// once, the last answer would be what is left over, and a model would learn to see that instead of reading.
Scene tell_and_ask(Teller& t, Statements statements);

}  // namespace thimble::sample
