// Text to standard streams, past stdio's buffers: what was written is out, and what could not be is known at once.
#pragma once

#include <string_view>

namespace thimble {

// All of it, however long that takes. 0, or the errno of what went wrong.
int write_all(int descriptor, std::string_view text);

// To stderr. Where nobody listens any more (it is closed, its disk is full, the reader of its pipe has left) it is
// lost, and nothing else is: what is spoken of goes on.
void write_to_stderr(std::string_view text);

}  // namespace thimble
