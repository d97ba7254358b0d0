#include "training/spec/yaml_attribute.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "training/spec/keys.h"

namespace capstan::training::spec {
namespace {

const char* KindName(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "a single value";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a group of keys";
  }
  return "nothing";
}

}  // namespace

bool IsTruth(absl::string_view text) { return text == "true" || text == "false"; }

std::string Found(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kScalar) return KindName(node);
  return absl::StrCat("'", node.scalar.substr(0, 80), node.scalar.size() > 80 ? "..." : "", "'");
}

bool IsWhole(const YamlNode& node, int64_t& value) {
  return node.kind == YamlNode::Kind::kScalar && !node.quoted && IsDecimal(node.scalar, true) &&
         absl::SimpleAtoi(node.scalar, &value);
}

bool ReadAttribute(const YamlNode& node, job::v1::Attribute& attribute) {
  if (node.kind == YamlNode::Kind::kSequence) {
    auto& values = *attribute.mutable_integers()->mutable_values();
    for (const YamlNode& item : node.items) {
      if (!IsWhole(item, *values.Add())) return false;
    }
    return true;
  }
  if (node.kind != YamlNode::Kind::kScalar) return false;
  int64_t integer = 0;
  double number = 0;
  if (node.quoted || (!IsDecimal(node.scalar, false) && !IsTruth(node.scalar))) {
    attribute.set_text(node.scalar);
  } else if (!IsDecimal(node.scalar, false)) {
    attribute.set_integer(node.scalar == "true" ? 1 : 0);
  } else if (IsWhole(node, integer)) {
    attribute.set_integer(integer);
  } else if (!IsDecimal(node.scalar, true) && absl::SimpleAtod(node.scalar, &number) &&
             std::isfinite(number)) {
    attribute.set_number(number);
  } else {
    return false;
  }
  return true;
}

}  // namespace capstan::training::spec
