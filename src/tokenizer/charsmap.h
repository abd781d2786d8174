// SentencePiece's table of normalised characters: u32 size of a trie, the trie (a darts-clone double array), the texts
// that it leads to. The library walks it without looking where it goes, so we look once, before it is handed over.
#pragma once

#include <string_view>

namespace thimble {

// Whether every step from every unit stays inside, and every text that is named ends inside. An empty table is sound.
bool charsmap_is_sound(std::string_view table);

}  // namespace thimble
