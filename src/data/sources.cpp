#include "data/sources.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "data/document.h"
#include "data/messengers.h"
#include "data/parquet.h"
#include "data/records.h"
#include "data/text_files.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr double kMaxWeight = 1000;  // maximum number of passes over a source

struct Weighted {
  std::string name;
  double weight;
};

// Splits "FILE:2.5" into name and weight. If a file with the full name exists, it has no weight.
std::optional<Weighted> split_weight(std::string_view input) {
  const auto colon = input.rfind(':');
  if (colon == input.npos || colon == 0 || fs::exists(fs::path(input))) return std::nullopt;
  const auto weight = parse_number<double>(input.substr(colon + 1));
  if (!weight) return std::nullopt;
  check(std::isfinite(*weight) && *weight > 0 && *weight <= kMaxWeight,
        "the weight in '{}' must be above 0 and at most {}", input, kMaxWeight);
  return Weighted{std::string(input.substr(0, colon)), *weight};
}

std::vector<fs::path> matching(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  std::ranges::sort(paths);
  return paths;
}

// Archives that are recognized by their names; empty for others.
std::string_view archive_problem(const fs::path& file) {
  const std::string ending = lower_case(file.extension().string());
  for (const std::string_view other : {".bz2", ".xz", ".zip", ".tar", ".7z", ".rar"})
    if (ending == other) return "is an archive of an unsupported type";
  return "";
}

void refuse_unsupported(const fs::path& file) {
  const std::string_view problem = archive_problem(file);
  check(problem.empty(), Hint{"unpack it, or recompress it as .zst or .gz"}, "{} {}", file.string(), problem);
}

// What the first bytes of a file that is no text say about it; empty for text.
std::string_view foreign_format(std::string_view start) {
  struct Magic {
    std::string_view bytes, reason;
  };
  constexpr Magic kMagics[] = {
      {"%PDF-", "it is a PDF file"},
      {"PK\x03\x04", "it is a ZIP archive or a document of an office program"},
      {"{\\rtf", "it is a document in RTF"},
      {"\x89PNG", "it is a picture"},
      {"\xFF\xD8\xFF", "it is a picture"},
      {"GIF8", "it is a picture"},
      {"BZh", "it is an archive"},
      {"PAR1", "it is a Parquet file without the ending .parquet"},
  };
  for (const Magic& magic : kMagics)
    if (start.starts_with(magic.bytes)) return magic.reason;
  return not_text(start);
}

// Why a file of a folder is not understood; empty if it is. An export of a messenger is read to
// find out, because its dates may be in a form that is not known.
std::string why_not_understood(const fs::path& file) {
  constexpr std::size_t kInspectedBytes = 4096;
  if (const std::string_view problem = archive_problem(file); !problem.empty())
    return fmt::format("it {}", problem);
  try {
    const FileForm& form = form_in(file, false);
    if (form.name == "Parquet") return is_parquet(file) ? "" : "it is not a Parquet file";
    if (const std::string_view reason = foreign_format(start_of(file, kInspectedBytes)); !reason.empty())
      return std::string(reason);
    if (form.recognize) form.open(file, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool is_folder_or_pattern(const DataSource& source) {
  return fs::is_directory(source.name) || !fs::exists(source.name);
}

struct FileKind {
  std::optional<DataKind> kind = std::nullopt;
  std::string reason = {};  // why it is neither
};

// The first valid record among the first 100 decides. Without one, the kind is not known.
FileKind kind_of_file(const fs::path& file, std::string_view text_field) {
  const FileForm& form = form_in(file, false);
  if (!form.json) return {.kind = DataKind::text};
  if (form.recognize) return {.kind = DataKind::chat};
  constexpr int kMaxRecordsRead = 100;
  const DataSource source{.name = file.string(), .files = {file}};
  RecordReader reader(source, {.split = DocumentSplit::line, .text_field = ""});
  for (int i = 0; i < kMaxRecordsRead; ++i) {
    const auto record = reader.next();
    if (!record) break;
    try {
      const Json json = parse_json(record->raw, file.string());
      if (looks_like_conversation(json)) return {.kind = DataKind::chat};
      if (json.find(text_field)) return {.kind = DataKind::text};
      return {.reason = fields_problem(json, text_field)};
    } catch (const Error&) {  // invalid JSON is reported when the source is read completely
    }
  }
  return {};
}

}  // namespace

DataSource find_source(std::string_view input) {
  DataSource source{.name = std::string(input)};
  if (const auto weighted = split_weight(input)) {
    source.name = weighted->name;
    source.weight = weighted->weight;
    source.weighted = true;
  }
  std::vector<fs::path> paths = {source.name};
  if (!fs::exists(source.name) && source.name.find_first_of("*?[") != std::string::npos) {
    paths = matching(source.name);
    check(!paths.empty(), "no file matches {}", source.name);
  }
  source.files = text_files(paths);
  if (!fs::is_directory(source.name)) {
    for (const fs::path& file : source.files) refuse_unsupported(file);
    return source;
  }
  std::erase_if(source.files, [&](const fs::path& file) {
    std::string reason = why_not_understood(file);
    if (reason.empty()) return false;
    source.left_out.push_back({file, std::move(reason)});
    return true;
  });
  if (source.files.empty())
    fail("{} contains no text and no chats: {}: {}", source.name, source.left_out[0].file.string(),
         source.left_out[0].reason);
  return source;
}

DataSource find_source(std::string_view input, const ReadOptions& options) {
  DataSource source = find_source(input);
  if (source.files.size() == 1 || !is_folder_or_pattern(source)) return source;
  const bool chat = options.kind == DataKind::chat;
  std::erase_if(source.files, [&](const fs::path& file) {
    // A file of chats may have any ending.
    if (chat && &form_in(file, true) == &file_forms()[1] && begins_like_json(file)) return false;
    FileKind found = kind_of_file(file, options.text_field);
    if (found.kind == options.kind || (!found.kind && found.reason.empty())) return false;
    if (found.kind)
      found.reason =
          chat ? "it is text, and the others are chats" : "it contains chats, and the others are text";
    source.left_out.push_back({file, std::move(found.reason)});
    return true;
  });
  if (source.files.empty())
    fail("{} contains no {}: {}: {}", source.name, chat ? "chats" : "text", source.left_out[0].file.string(),
         source.left_out[0].reason);
  return source;
}

DataKind detect_kind(const DataSource& source, std::string_view text_field) {
  std::optional<DataKind> kind;
  const fs::path* first = nullptr;  // of this kind
  for (const fs::path& file : source.files) {
    const auto found = kind_of_file(file, text_field).kind;
    if (!found) continue;
    if (!kind) first = &file;
    if (kind && kind != found) {
      const bool text_first = kind == DataKind::text;
      fail(Hint{"pass --chat to train on the chats only, or name the texts, such as 'notes/*.txt'"},
           "{} contains both texts and chats: {} and {}", source.name, (text_first ? *first : file).string(),
           (text_first ? file : *first).string());
    }
    kind = found;
  }
  return kind.value_or(DataKind::text);
}

std::string assistant_in(std::span<const DataSource> sources, std::string_view wanted) {
  Participants people;
  bool exports = false;
  for (const DataSource& source : sources)
    for (const fs::path& file : source.files) {
      const FileForm& form = form_in(file, false);
      if (!form.recognize) continue;
      exports = true;
      people.add(form.name == "WhatsApp export" ? read_whatsapp_export(file) : read_telegram_export(file));
    }
  if (wanted.empty()) return people.likely_assistant();
  check(exports, "--assistant names a participant of WhatsApp or Telegram exports, but there are none");
  people.check_known(wanted);
  return std::string(wanted);
}

std::string inputs_text(std::span<const DataSource> sources) {
  constexpr std::size_t kMostListed = 20;
  struct Sum {
    std::size_t files = 0;
    std::uint64_t bytes = 0;
  };
  std::map<int, Sum> sums;  // by the form's id
  std::size_t files = 0;
  std::vector<const LeftOut*> left_out;
  for (const DataSource& source : sources) {
    for (const fs::path& file : source.files) {
      Sum& sum = sums[form_in(file, false).id];
      ++sum.files;
      sum.bytes += fs::file_size(file);
      ++files;
    }
    for (const LeftOut& file : source.left_out) left_out.push_back(&file);
  }
  if (files <= 1 && left_out.empty()) return "";
  Table table({"form", "files", "size"});
  for (const FileForm& form : file_forms())
    if (const auto sum = sums.find(form.id); sum != sums.end())
      table.row({std::string(form.name), with_commas(static_cast<long long>(sum->second.files)),
                 in_bytes(static_cast<double>(sum->second.bytes))});
  std::string text = table.text();
  if (left_out.empty()) return text;
  text += fmt::format("\nnot read: {} file{}\n", with_commas(static_cast<long long>(left_out.size())),
                      left_out.size() == 1 ? "" : "s");
  Table list;
  for (std::size_t i = 0; i < std::min(left_out.size(), kMostListed); ++i)
    list.row({left_out[i]->file.string(), left_out[i]->reason});
  text += list.text();
  if (left_out.size() > kMostListed) text += fmt::format("and {} more\n", left_out.size() - kMostListed);
  return text;
}

}  // namespace thimble
