#include "train/data_settings.h"

#include "base/error.h"
#include "base/json.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "model/config.h"

namespace thimble {

namespace {

DataKind kind_named(const std::string& name, std::string_view where) {
  for (DataKind kind : {DataKind::text, DataKind::chat})
    if (name == name_of(kind)) return kind;
  fail("{}: kind is '{}', expected {} or {}", where, name, name_of(DataKind::text), name_of(DataKind::chat));
}

}  // namespace

std::string DataSettings::to_json() const {
  return Json::object()
             .set("data", data.string())
             .set("val_data", val_data.string())
             .set("val_fraction", val_fraction)
             .set("kind", name_of(kind))
             .set("order", name_of(order))
             .set("sub_batch_tokens", sub_batch_tokens)
             .dump(2) +
         "\n";
}

DataSettings DataSettings::from_json(const std::string& text, std::string_view name) {
  const Json json = parse_json(text, name);
  const Json* sub_batch = json.find("sub_batch_tokens");
  return {.data = json.at("data").as_string(),
          .val_data = json.at("val_data").as_string(),
          .val_fraction = json.at("val_fraction").as_double(),
          .kind = kind_named(json.at("kind").as_string(), name),
          .order = read_order_named(json.at("order").as_string()),
          .sub_batch_tokens = sub_batch ? sub_batch->as_int() : DataSettings{}.sub_batch_tokens};
}

LoaderSettings loader_settings(const Config& config, const DataSettings& source, const Communicator& ranks) {
  return {.rows = {.order = source.order,
                   .T = config.model.context,
                   .step_rows = config.train.batch_tokens / config.model.context,
                   .seed = static_cast<std::uint64_t>(config.train.seed),
                   .span_tokens = config.train.span_tokens,
                   .sub_batch_tokens = source.sub_batch_tokens},
          .micro_batch = config.train.micro_batch,
          .isolate = config.model.isolate,
          .rank = ranks.rank(),
          .ranks = ranks.size()};
}

}  // namespace thimble
