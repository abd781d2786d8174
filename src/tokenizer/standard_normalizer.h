// A SentencePiece model carries its normaliser as a table of some 240 kB. The standard ones are in
// libsentencepiece anyway: a file that counts its bytes names the table, and stores how the model's own
// differs from it (not at all, or by what another version of Unicode added).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace thimble {

// The name of the standard normaliser in a SentencePiece model; nullopt: it has none, or this is no such
// model.
std::optional<std::string> standard_normalizer_in(std::string_view model);

// The library's own table of that name. A name that it does not know is an Error.
std::string standard_normalizer_table(std::string_view name);

}  // namespace thimble
