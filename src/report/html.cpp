#include "report/html.h"

#include <fmt/format.h>

#include "base/json.h"

namespace thimble {

namespace {

// As our JSON writer would keep it.
std::string valid_utf8(std::string_view text) {
  return parse_json(Json(text).dump(), "text").as_string();
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (is_control(c))
          out += "\xEF\xBF\xBD";
        else
          out += c;
    }
  }
  return out;
}

std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& values) {
  std::string out;
  while (!text.empty()) {
    const std::size_t at = text.find('@');
    out += text.substr(0, at);
    if (at == text.npos) break;
    text.remove_prefix(at);
    const std::size_t before = text.size();
    for (const auto& [name, value] : values) {
      const std::string mark = fmt::format("@{}@", name);
      if (!text.starts_with(mark)) continue;
      out += value;
      text.remove_prefix(mark.size());
      break;
    }
    if (text.size() < before) continue;
    out += '@';
    text.remove_prefix(1);
  }
  return out;
}

std::string table_row(std::string_view label, std::string_view value) {
  return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escaped(label), escaped(value));
}

}  // namespace thimble
