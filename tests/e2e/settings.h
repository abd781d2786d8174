// Default settings of a test's command line.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace thimble {

// "--set SETTING" for each setting whose key `more` does not give, by --set or as an option. A key
// may be given once.
inline std::vector<std::string> settings_beside(const std::vector<std::string>& more,
                                                const std::vector<std::string>& settings) {
  std::vector<std::string> words;
  for (const std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    std::string option = "--" + key;
    std::ranges::replace(option, '_', '-');
    const bool given = std::ranges::any_of(
        more, [&](const std::string& word) { return word == option || word.starts_with(key + "="); });
    if (!given) words.insert(words.end(), {"--set", setting});
  }
  return words;
}

}  // namespace thimble
