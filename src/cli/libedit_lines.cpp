#include "cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "base/error.h"

namespace thimble {

namespace {

constexpr int kKeptLines = 1000;
constexpr const char* kInvisible = "\1";  // encloses escape sequences in the prompt, which have no width
// A terminal with "bracketed paste" puts these around pasted text, so that a newline in it does not
// send the message.
constexpr std::string_view kPasteMarksOn = "\x1b[?2004h";
constexpr std::string_view kPasteMarksOff = "\x1b[?2004l";
constexpr const char* kPasteBegins = "\x1b[200~";
constexpr std::wstring_view kPasteEnds = L"\x1b[201~";

// libedit uses the locale's character set. If that is not UTF-8, use UTF-8 all the same, because
// the terminal most likely does.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

bool is_smart_terminal() {
  const char* terminal = std::getenv("TERM");
  return terminal && *terminal && std::strcmp(terminal, "dumb") != 0;
}

// Bound to kPasteBegins: reads pasted text, including newlines, into the current line.
unsigned char insert_paste(EditLine* editor, int) {
  std::wstring text;
  for (wchar_t c = 0; !text.ends_with(kPasteEnds);) {
    if (el_wgetc(editor, &c) != 1) return CC_EOF;
    text += c == L'\r' ? L'\n' : c;
  }
  text.resize(text.size() - kPasteEnds.size());
  while (text.ends_with(L'\n')) text.pop_back();  // only the Return key sends the message
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// libedit shows an invisible part together with the character after it, so the prompt must end
// visibly.
std::string coloured(std::string_view prompt) {
  const std::size_t word = std::min(prompt.find_last_not_of(' ') + 1, prompt.size());
  return fmt::format("{0}\x1b[1;32m{0}{1}{0}\x1b[0m{0}{2}", kInvisible, prompt.substr(0, word),
                     prompt.substr(word));
}

void show(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Resets the terminal when a signal ends the program at the prompt. libedit's handler runs first,
// restores the other settings and raises the signal again.
void reset_and_raise(int signal) {
  std::ignore = write(STDOUT_FILENO, kPasteMarksOff.data(), kPasteMarksOff.size());
  raise(signal);  // the default action, because of SA_RESETHAND
}

// Turns bracketed paste on for its lifetime.
class PasteMarks {
 public:
  explicit PasteMarks(bool known) : known_(known) {
    if (!known_) return;
    sigaction(SIGTERM, nullptr, &before_);
    struct sigaction action {};
    action.sa_handler = reset_and_raise;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    if (before_.sa_handler == SIG_DFL) sigaction(SIGTERM, &action, nullptr);
    show(kPasteMarksOn);
  }
  ~PasteMarks() {
    if (!known_) return;
    show(kPasteMarksOff);
    sigaction(SIGTERM, &before_, nullptr);
  }
  PasteMarks(const PasteMarks&) = delete;
  PasteMarks& operator=(const PasteMarks&) = delete;

 private:
  bool known_;
  struct sigaction before_ {};
};

struct Deleter {
  void operator()(EditLine* editor) const { el_end(editor); }
  void operator()(History* history) const { history_end(history); }
};

class LibeditLines : public LineEditor {
 public:
  LibeditLines(const EditorOptions& options, const Interrupt& interrupt)
      : options_(options), interrupt_(interrupt), history_(::history_init()) {
    use_utf8();
    editor_.reset(el_init("thimble", stdin, stdout, stderr));
    if (!editor_ || !history_) return;
    HistEvent event;
    ::history(history_.get(), &event, H_SETSIZE, kKeptLines);
    ::history(history_.get(), &event, H_SETUNIQUE, 1);
    for (const std::string& line : read_line_history(options.history, kKeptLines))
      ::history(history_.get(), &event, H_ENTER, line.c_str());
    EditLine* editor = editor_.get();
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT_ESC, &LibeditLines::prompt_of, kInvisible[0]);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, ::history, history_.get());
    el_set(editor, EL_SIGNAL, 1);  // restore the terminal when a signal stops or continues the process
    // The wide version, because libedit never frees the copies that el_set makes.
    el_wset(editor, EL_ADDFN, L"insert-paste", L"insert pasted text", insert_paste);
    el_set(editor, EL_BIND, kPasteBegins, "insert-paste", nullptr);
    // Ctrl-D that was pressed during an answer reaches the editor as this character.
    el_set(editor, EL_BIND, "^@", "em-delete-or-list", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor, EL_BIND, "\\e[3~", "ed-delete-next-char", nullptr);
    el_set(editor, EL_BIND, "\\e[1;5C", "em-next-word", nullptr);
    el_set(editor, EL_BIND, "\\e[1;5D", "ed-prev-word", nullptr);
    el_source(editor, nullptr);  // ~/.editrc
  }

  bool usable() const { return editor_ && history_; }

  Line read(std::string_view prompt) override {
    prompt_ = options_.colour ? coloured(prompt) : std::string(prompt);
    int length = 0;
    const char* text = nullptr;
    bool interrupted = false;
    {
      const PasteMarks marks(has_paste_marks_);
      errno = 0;
      text = el_gets(editor_.get(), &length);
      // libedit raises the signal again for the process. If another thread handles it, the handler
      // may not have run yet, and requested() is still false.
      interrupted = !text && (interrupt_.requested() || (length < 0 && errno == EINTR));
    }
    if (interrupted) {
      show("\n");
      return {LineEnd::interrupted};
    }
    if (!text || length <= 0) {
      show("\n");
      return {};
    }
    std::string line(text, static_cast<std::size_t>(length));
    if (line.ends_with('\n')) line.pop_back();
    return {LineEnd::line, std::move(line)};
  }

  void remember(std::string_view text) override {
    if (text.empty()) return;
    HistEvent event;
    const bool is_new = ::history(history_.get(), &event, H_ENTER, std::string(text).c_str()) > 0;
    if (is_new && !options_.history.empty()) append_line_history(options_.history, text);
  }

 private:
  static char* prompt_of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<LibeditLines*>(self)->prompt_.data();
  }

  EditorOptions options_;
  const Interrupt& interrupt_;
  std::unique_ptr<History, Deleter> history_;
  std::unique_ptr<EditLine, Deleter> editor_;
  std::string prompt_;
  bool has_paste_marks_ = is_smart_terminal();
};

}  // namespace

std::unique_ptr<LineEditor> make_libedit_lines(const EditorOptions& options, const Interrupt& interrupt) {
  auto lines = std::make_unique<LibeditLines>(options, interrupt);
  if (!lines->usable()) return nullptr;
  return lines;
}

}  // namespace thimble
