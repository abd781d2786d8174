// Arbitrary bytes as a file of each form that becomes text or JSON: CSV, HTML, Markdown, and the
// exports of messengers.

#include "base/error.h"
#include "base/json.h"
#include "data/csv.h"
#include "data/markup.h"
#include "data/messengers.h"
#include "memory_file.h"
#include "targets.h"

namespace thimble {

namespace {

void try_csv(const std::filesystem::path& file) {
  try {
    CsvReader reader(file);
    while (const auto row = reader.next()) {
      if (!row->problem.empty()) continue;
      require(parse_json(row->json, "row").size() == reader.columns().size(),
              "a row has a value for each column");
    }
  } catch (const Error& error) {
    // Two names of columns may become equal when invalid bytes are replaced.
    require(std::string_view(error.what()).find("row:") != 0 ||
                std::string_view(error.what()).find("duplicate") != std::string_view::npos,
            "a row is JSON");
  }
}

template <class Read>
void try_export(const Read& read, std::string_view text) {
  try {
    for (const ChatMessages& messages : read(text, "fuzz")) {
      std::size_t bytes = 0, kept = 0, turns = 0;
      for (const ChatMessage& message : messages) bytes += message.text.size() + 1;
      const std::string assistant = messages.empty() ? "" : messages.front().sender;
      for (const DatedConversation& conversation : conversations_of(messages, assistant)) {
        for (const Turn& turn : conversation.turns) kept += turn.content.size() + 1;
        turns += conversation.turns.size();
      }
      require(kept == bytes, "no message is lost");
      require(turns <= messages.size(), "a turn has at least one message");
    }
  } catch (const Error&) {
  }
}

}  // namespace

void fuzz_export(FuzzBytes bytes) {
  const MemoryFile file(bytes);
  const std::string_view text = text_of(bytes);
  try_csv(file.path());
  require(markdown_text(text).size() <= text.size(), "Markdown becomes no longer");
  // The longest entity by what it becomes: "&#9;" in a line of its own.
  require(html_text(text).size() <= 2 * text.size() + 1, "HTML becomes hardly longer");
  is_whatsapp_export(file.path());
  is_telegram_export(file.path());
  try_export(read_whatsapp, text);
  try_export(read_telegram, text);
}

}  // namespace thimble
