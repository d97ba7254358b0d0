#include "training/spec/layer_ranges.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "training/graph/graph.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::training::spec {
namespace {

AttributeValue ValueOf(const AttributeDef& def, const job::v1::Attribute& from) {
  if (std::holds_alternative<double>(def.value)) {
    return from.value_case() == from.kInteger ? static_cast<double>(from.integer()) : from.number();
  }
  if (std::holds_alternative<int64_t>(def.value)) return from.integer();
  if (std::holds_alternative<std::string>(def.value)) return from.text();
  return std::vector<int64_t>(from.integers().values().begin(), from.integers().values().end());
}

// A value in the range of any operator: the default, or ones. `two`: a list has two of them, else as
// many as it has.
AttributeValue Harmless(const AttributeDef& def, const AttributeValue& value, bool two) {
  if (!def.required) return def.value;
  if (const auto* const list = std::get_if<std::vector<int64_t>>(&value)) {
    return std::vector<int64_t>(two ? 2 : list->size(), 1);
  }
  if (std::holds_alternative<int64_t>(value)) return int64_t{1};
  return def.value;
}

// Shapes that the layer might read: of every rank, and large images with channels of many divisors
// and with as many channels as an attribute says, for a `group`.
std::vector<ValueType> PossibleInputs(const Attributes& attributes) {
  constexpr int64_t kDivisible = 5040, kSide = 4096, kMostChannels = int64_t{1} << 16;
  std::vector<ValueType> inputs;
  for (const int64_t first : {kDivisible, kDivisible / 2}) {
    for (Shape shape = {first}; shape.size() <= kMaxAxes; shape.push_back(2)) {
      inputs.push_back({shape, DType::kFloat32});
    }
  }
  std::set<int64_t> channels = {1, kDivisible};
  for (const auto& [name, value] : attributes.values()) {
    const auto* const number = std::get_if<int64_t>(&value);
    if (number != nullptr && *number > 1 && *number <= kMostChannels) channels.insert(*number);
  }
  for (const int64_t count : channels) {
    inputs.push_back({{count, kSide, kSide}, DType::kFloat32});
  }
  return inputs;
}

absl::Status Infer(const OpDef& op, Attributes attributes, const ValueType& input) {
  absl::Status status = attributes.Normalize(op.attributes);
  if (status.ok()) status = op.infer({&input, 1}, attributes).status();
  return status;
}

// Keeps those of `inputs` that fit `attributes`. If none does, keeps all, returns false, and gives
// the message that all of them give; empty if they give several, which say something of the input.
bool Narrow(const OpDef& op, const Attributes& attributes, std::vector<ValueType>& inputs,
            std::string& message) {
  std::vector<ValueType> fitting;
  std::set<std::string> messages;
  for (const ValueType& input : inputs) {
    const absl::Status status = Infer(op, attributes, input);
    if (status.ok()) {
      fitting.push_back(input);
    } else {
      messages.emplace(status.message());
    }
  }
  message = messages.size() == 1 && inputs.size() > 1 ? *messages.begin() : "";
  if (fitting.empty()) return false;
  inputs = std::move(fitting);
  return true;
}

}  // namespace

const AttributeDef* FindAttribute(const OpDef& op, absl::string_view name) {
  for (const AttributeDef& def : op.attributes) {
    if (def.name == name) return &def;
  }
  return nullptr;
}

// Begins with harmless attributes, and puts in those of the layer one by one. One that no input
// fits any more is at fault, unless the message depends on the input.
std::vector<LayerFault> FaultsOfLayer(const OpDef& op, const job::v1::GraphNode& node) {
  // The shape must have the elements of the input, which are not known.
  if (op.name == Reshape::kName) return {};
  Attributes given, tried;
  for (const job::v1::Attribute& attribute : node.attributes()) {
    const AttributeDef& def = *FindAttribute(op, attribute.name());
    given.Set(def.name, ValueOf(def, attribute));
  }
  std::vector<ValueType> inputs = PossibleInputs(given);
  std::string message;
  // The list of a window has two numbers, however many are given.
  bool fits = false;
  for (const bool two : {false, true}) {
    if (fits || (two && FindAttribute(op, "kernel_shape") == nullptr)) continue;
    for (const auto& [name, value] : given.values()) {
      tried.Set(name, Harmless(*FindAttribute(op, name), value, two));
    }
    fits = Narrow(op, tried, inputs, message);
  }
  if (!fits) return {};
  std::vector<LayerFault> faults;
  for (const job::v1::Attribute& attribute : node.attributes()) {
    const std::string& name = attribute.name();
    const AttributeValue harmless = tried.values().at(name);
    tried.Set(name, given.values().at(name));
    if (Narrow(op, tried, inputs, message)) continue;
    tried.Set(name, harmless);
    if (message.empty()) continue;
    faults.push_back(
        {name, std::string(absl::StripPrefix(message, absl::StrCat("attribute ", name, ": ")))});
  }
  return faults;
}

}  // namespace capstan::training::spec
