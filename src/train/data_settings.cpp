#include "train/data_settings.h"

#include "base/error.h"
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
  const std::string& order = json.at("order").as_string();
  check(order == kSequential || order == kShuffled, "{}: order is '{}', expected {} or {}", name, order,
        kSequential, kShuffled);
  return {json.at("data").as_string(), json.at("val_data").as_string(), json.at("val_fraction").as_double(),
          order == kSequential ? ReadOrder::sequential : ReadOrder::shuffled};
}

}  // namespace thimble
