#include "train/train_data.h"

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "data/build.h"
#include "data/data_folder.h"
#include "data/records.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Text or chats to shards in `folder`.
Manifest build_in(const fs::path& folder, const OpenDataRequest& request, FileOps& ops, const Log& log,
                  const ProgressOutput& progress, const Interrupt& interrupt) {
  const DataSettings& settings = request.settings;
  check(!is_data_folder(settings.val_data),
        Hint{"name the text of both, or build shards of both with `thimble data build`"},
        "{} is text, but {} holds tokens", settings.data.string(), settings.val_data.string());
  BuildRequest build{.inputs = {settings.data.string()},
                     .tokenizer = request.tokenizer,
                     .folder = folder,
                     .if_built = IfBuilt::reuse};
  build.read.kind = settings.kind;
  if (settings.val_data.empty())
    build.val_fraction = settings.val_fraction;
  else
    build.val_inputs = {settings.val_data.string()};
  return build_dataset(build, ops, log, progress, &interrupt).manifest;
}

// The run's own shards stay as they are until it is known that the others are the same.
void check_match(const DataFolder& built, const OpenDataRequest& request, FileOps& ops, const Log& log,
                 const ProgressOutput& progress, const Interrupt& interrupt) {
  fs::path other = built.path;
  other += ".named";
  const Manifest named = build_in(other, request, ops, log, progress, interrupt);
  remove_all(ops, other);
  check(built.manifest && named.train == built.manifest->train && named.val == built.manifest->val,
        Hint{"leave out --data: the run has its own copy; --init starts a new run on other data"},
        "{} is not the data of the run", request.settings.data.string());
}

// A run goes on with what was moved or removed since.
void check_is_there(const fs::path& data) {
  try {
    find_source(data.string());
  } catch (const Error& error) {
    fail(Hint{"say with --data where the run's data is now"}, "{}", error.what());
  }
}

// The folder with the shards, made if need be.
DataFolder folder_for(const OpenDataRequest& request, FileOps& ops, const Log& log,
                      const ProgressOutput& progress, const Interrupt& interrupt) {
  if (is_data_folder(request.settings.data)) return open_data_folder(request.settings.data);
  if (request.built == BuiltData::is_remade || !is_data_folder(request.build_in)) {
    if (request.built != BuiltData::is_remade) check_is_there(request.settings.data);
    build_in(request.build_in, request, ops, log, progress, interrupt);
    return open_data_folder(request.build_in);
  }
  DataFolder built = open_data_folder(request.build_in);
  if (request.built == BuiltData::must_match) check_match(built, request, ops, log, progress, interrupt);
  return built;
}

}  // namespace

std::string TrainData::digest() const {
  Digester digester;
  for (const std::string& part : {train.fingerprint(), val ? val->fingerprint() : std::string()})
    digester.add(std::as_bytes(std::span(part)));
  return digester.result().hex();
}

TrainData open_train_data(const OpenDataRequest& request, FileOps& ops, const Log& log,
                          const ProgressOutput& progress, const Interrupt& interrupt) {
  const DataFolder folder = folder_for(request, ops, log, progress, interrupt);
  check_tokenizer(folder, *request.tokenizer);
  const TokenMarks marks = TokenMarks::of(*request.tokenizer, folder.kind(), request.loss_on);
  TrainData data{
      .train = open_split(folder, DataSplit::train, marks), .val = std::nullopt, .kind = folder.kind()};
  const DataFolder* validation = &folder;
  std::optional<DataFolder> other;
  if (is_data_folder(request.settings.data) && !request.settings.val_data.empty()) {
    check(is_data_folder(request.settings.val_data),
          Hint{"`thimble data build` makes tokens of it, with the same tokenizer"},
          "{} holds tokens, so --val-data must be a folder of tokens, too: {} is none",
          request.settings.data.string(), request.settings.val_data.string());
    other = open_data_folder(request.settings.val_data);
    check_tokenizer(*other, *request.tokenizer);
    validation = &*other;
  }
  // Of chats the answers are scored, whatever is learned from: so figures of different runs compare.
  if (!validation->files(DataSplit::val).empty())
    data.val = open_split(*validation, DataSplit::val,
                          TokenMarks::of(*request.tokenizer, validation->kind(), LossOn::assistant));
  check(data.val || request.settings.val_data.empty(),
        Hint{"leave out --val-data: a part of --data is taken"}, "{} holds nothing to validate on",
        request.settings.val_data.string());
  if (folder.manifest) {
    data.documents = folder.manifest->train.documents;
    data.bytes = folder.manifest->train.bytes;
  }
  return data;
}

}  // namespace thimble
