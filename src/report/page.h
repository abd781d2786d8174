// The page that reports, plots and the dashboard share: web/page.html with something in it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble {

// HTML, by the id of its section. Sections are what the dashboard exchanges when they change.
using Sections = std::vector<std::pair<std::string, std::string>>;

struct Page {
  std::string title;  // not escaped yet
  Sections sections;
  bool live = false;  // listens to the server that sent it
  std::string nonce =
      {};  // of script and style; empty: one made of the content, which nothing inside can know
};

std::string page_html(const Page& page);

}  // namespace thimble
