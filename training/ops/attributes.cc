#include "training/ops/attributes.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"

namespace capstan::training {
namespace {

const char* TypeName(const AttributeValue& value) {
  static constexpr const char* kNames[] = {"a whole number", "a number", "text",
                                           "a list of whole numbers"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == std::variant_size_v<AttributeValue>);
  return kNames[value.index()];
}

}  // namespace

const AttributeValue& Attributes::Find(const std::string& name) const {
  const auto found = values_.find(name);
  CAPSTAN_CHECK(found != values_.end());
  return found->second;
}

absl::Status Attributes::Normalize(absl::Span<const AttributeDef> schema) {
  for (const auto& [name, value] : values_) {
    const AttributeDef* def = nullptr;
    for (const AttributeDef& candidate : schema) {
      if (candidate.name == name) def = &candidate;
    }
    if (def == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", name, ": not known, want one of ",
                       absl::StrJoin(schema, ", ", [](std::string* out, const AttributeDef& known) {
                         out->append(known.name);
                       })));
    }
    if (value.index() != def->value.index()) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", name, ": ", TypeName(value), ", want ", TypeName(def->value)));
    }
    const double* const number = std::get_if<double>(&value);
    if (number != nullptr && !std::isfinite(*number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", name, ": ", *number, ", want a finite number"));
    }
  }
  for (const AttributeDef& def : schema) {
    if (Has(def.name)) continue;
    if (def.required) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", def.name, ": is required"));
    }
    values_[def.name] = def.value;
  }
  return absl::OkStatus();
}

}  // namespace capstan::training
