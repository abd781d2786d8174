// Who said what, in order. Its JSON forms are in data/chat.h, its tokens in chat_layout.h.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

enum class ChatRole { system, user, assistant };

constexpr std::string_view name_of(ChatRole role) {
  constexpr std::array<std::string_view, 3> kNames = {"system", "user", "assistant"};
  return kNames[static_cast<std::size_t>(role)];
}

struct Turn {
  ChatRole role;
  std::string content;
  bool operator==(const Turn&) const = default;
};
using Conversation = std::vector<Turn>;

}  // namespace thimble
