#include "training/spec/layer_ranges.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "training/graph/graph.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::training::spec {
namespace {

// Has many divisors.
constexpr int64_t kDivisible = 5040;

AttributeValue ValueOf(const AttributeDef& def, const job::v1::Attribute& from) {
  if (std::holds_alternative<double>(def.value)) {
    return from.value_case() == from.kInteger ? static_cast<double>(from.integer()) : from.number();
  }
  if (std::holds_alternative<int64_t>(def.value)) return from.integer();
  if (std::holds_alternative<std::string>(def.value)) return from.text();
  return std::vector<int64_t>(from.integers().values().begin(), from.integers().values().end());
}

// A value in the range of any operator: the default, else `number`. `two`: a list has two of them,
// else as many as it has.
AttributeValue Harmless(const AttributeDef& def, const AttributeValue& value, bool two,
                        int64_t number) {
  if (!def.required) return def.value;
  if (const auto* const list = std::get_if<std::vector<int64_t>>(&value)) {
    return std::vector<int64_t>(two ? 2 : list->size(), number);
  }
  if (std::holds_alternative<int64_t>(value)) return number;
  return def.value;
}

// Shapes that the layer might read: of every rank, and large images with channels of many divisors
// and with as many channels as an attribute says, for a `group`. Images are of two sizes, so that a
// message with the size of an image is not the same for all.
std::vector<ValueType> PossibleInputs(const Attributes& attributes) {
  constexpr int64_t kSide = 4096, kMostChannels = int64_t{1} << 16;
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
    for (const int64_t side : {kSide, kSide - 1}) {
      inputs.push_back({{count, side, side}, DType::kFloat32});
    }
  }
  return inputs;
}

absl::Status Infer(const OpDef& op, Attributes attributes, const ValueType& input) {
  absl::Status status = attributes.Normalize(op.attributes);
  if (status.ok()) status = op.infer({&input, 1}, attributes).status();
  return status;
}

// Attributes that are harmless, and the inputs that fit them.
struct Probe {
  Attributes attributes;
  std::vector<ValueType> inputs;
};

// One for each choice of harmless numbers that inputs fit. A message that has such a number is not
// the same for all of them.
std::vector<Probe> HarmlessProbes(const OpDef& op, const Attributes& given,
                                  const std::vector<ValueType>& inputs) {
  std::vector<Probe> probes;
  for (const int64_t number : {int64_t{1}, kDivisible / 5, kDivisible}) {
    for (const bool two : {false, true}) {  // a window has two numbers, however many are given
      Probe probe;
      for (const auto& [name, value] : given.values()) {
        probe.attributes.Set(name, Harmless(*FindAttribute(op, name), value, two, number));
      }
      for (const ValueType& input : inputs) {
        if (Infer(op, probe.attributes, input).ok()) probe.inputs.push_back(input);
      }
      if (probe.inputs.size() > 1) probes.push_back(std::move(probe));
    }
  }
  return probes;
}

// Adds the messages of inputs that do not fit `attributes`. Whether one fits.
bool SomeInputFits(const OpDef& op, const Attributes& attributes,
                   const std::vector<ValueType>& inputs, std::set<std::string>& messages) {
  for (const ValueType& input : inputs) {
    const absl::Status status = Infer(op, attributes, input);
    if (status.ok()) return true;
    messages.emplace(status.message());
  }
  return false;
}

// Whether some input fits the harmless attributes with that of this name as it is `given`, or, with
// `rest`, those given with that one harmless. Else `messages` has all that they say.
bool FitsWith(const OpDef& op, const std::vector<Probe>& probes, const Attributes& given,
              const std::string& name, bool rest, std::set<std::string>& messages) {
  for (const Probe& probe : probes) {
    Attributes tried = rest ? given : probe.attributes;
    tried.Set(name, (rest ? probe.attributes : given).values().at(name));
    if (SomeInputFits(op, tried, probe.inputs, messages)) return true;
  }
  return false;
}

LayerFault Fault(const std::string& name, const std::string& message) {
  return {name, std::string(absl::StripPrefix(message, absl::StrCat("attribute ", name, ": ")))};
}

// Each of `given` fits without the others, and they do not go together. The fault is of the last
// written one that may not stay, if all inputs say the same.
std::vector<LayerFault> FaultOfAll(const OpDef& op, const job::v1::GraphNode& node,
                                   const std::vector<Probe>& probes, const Attributes& given) {
  std::set<std::string> messages, others;
  for (const Probe& probe : probes) SomeInputFits(op, given, probe.inputs, messages);
  if (messages.size() != 1) return {};
  for (int i = node.attributes_size() - 1; i >= 0; --i) {
    const std::string& name = node.attributes(i).name();
    if (FitsWith(op, probes, given, name, /*rest=*/true, others)) {
      return {Fault(name, *messages.begin())};
    }
  }
  return {};
}

}  // namespace

const AttributeDef* FindAttribute(const OpDef& op, absl::string_view name) {
  for (const AttributeDef& def : op.attributes) {
    if (def.name == name) return &def;
  }
  return nullptr;
}

// No attribute is at fault if some input fits them all. Else one is that nothing fits even beside
// harmless ones, unless the message depends on these or on the input.
std::vector<LayerFault> FaultsOfLayer(const OpDef& op, const job::v1::GraphNode& node) {
  // The shape must have the elements of the input, which are not known.
  if (op.name == Reshape::kName) return {};
  Attributes given;
  for (const job::v1::Attribute& attribute : node.attributes()) {
    const AttributeDef& def = *FindAttribute(op, attribute.name());
    given.Set(def.name, ValueOf(def, attribute));
  }
  const std::vector<ValueType> inputs = PossibleInputs(given);
  std::set<std::string> ignored;
  if (SomeInputFits(op, given, inputs, ignored)) return {};
  const std::vector<Probe> probes = HarmlessProbes(op, given, inputs);
  std::vector<LayerFault> faults;
  bool all_fit = !probes.empty();
  for (const job::v1::Attribute& attribute : node.attributes()) {
    const std::string& name = attribute.name();
    std::set<std::string> messages;
    if (FitsWith(op, probes, given, name, /*rest=*/false, messages)) continue;
    all_fit = false;
    if (messages.size() == 1) faults.push_back(Fault(name, *messages.begin()));
  }
  return all_fit ? FaultOfAll(op, node, probes, given) : faults;
}

}  // namespace capstan::training::spec
