#include "train/data_settings.h"

#include "base/json.h"

namespace thimble {

namespace {

constexpr std::string_view kSequential = "sequential", kShuffled = "shuffled";

}  // namespace

std::string DataSettings::to_json() const {
  return Json::object()
             .set("data", data.string())
             .set("val_data", val_data.string())
             .set("val_fraction", val_fraction)
             .set("order", order == ReadOrder::sequential ? kSequential : kShuffled)
             .dump(2) +
         "\n";
}

DataSettings DataSettings::from_json(const std::string& text, std::string_view name) {
  const Json json = parse_json(text, name);
  return {json.at("data").as_string(), json.at("val_data").as_string(), json.at("val_fraction").as_double(),
          json.at("order").as_string() == kSequential ? ReadOrder::sequential : ReadOrder::shuffled};
}

}  // namespace thimble
