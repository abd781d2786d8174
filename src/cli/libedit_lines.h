// Line editing by libedit: keys, history, pasted text. Compiled where libedit is there (CMakeLists.txt).
#pragma once

#include "cli/line_editor.h"

namespace thimble {

// nullptr: libedit cannot use this terminal.
std::unique_ptr<LineEditor> make_libedit_lines(const EditorOptions& options, const Interrupt& interrupt);

}  // namespace thimble
