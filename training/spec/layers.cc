#include "training/spec/layers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/graph/graph.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/op.h"
#include "training/ops/pool/pool.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/spec/layer_ranges.h"
#include "training/spec/nearest.h"
#include "training/spec/yaml_attribute.h"

namespace capstan::training::spec {
namespace {

constexpr size_t kMostErrors = 16;
constexpr size_t kMostShown = 80;

bool IsLayer(const OpDef& op) { return op.min_inputs == 1 && op.max_inputs == 1; }

const OpDef* FindLayer(absl::string_view name) {
  for (const OpDef* op : AllOps()) {
    if (IsLayer(*op) && LayerName(op->name) == name) return op;
  }
  return nullptr;
}

// What the names of an operator's nodes begin with.
std::string NodeNameOf(const OpDef& op) {
  if (op.name == Gemm::kName) return "fc";
  if (op.name == BatchNormalization::kName) return "bn";
  if (op.name == MaxPool::kName || op.name == AveragePool::kName) return "pool";
  return LayerName(op.name);
}

const char* TypeOf(const AttributeDef& def) {
  if (std::holds_alternative<int64_t>(def.value)) return "a whole number";
  if (std::holds_alternative<double>(def.value)) return "a number";
  if (std::holds_alternative<std::string>(def.value)) return "a text";
  return "a whole number or a list of whole numbers";
}

// How many numbers a single one stands for.
int TimesOf(const OpDef& op, absl::string_view attribute) {
  if (FindAttribute(op, "kernel_shape") == nullptr) return 1;
  return attribute == "pads" ? 4 : 2;
}

// Makes `attribute` have the type of `def`. False: it has another one.
bool Fit(const OpDef& op, const AttributeDef& def, job::v1::Attribute& attribute) {
  using Value = job::v1::Attribute;
  if (std::holds_alternative<int64_t>(def.value)) return attribute.value_case() == Value::kInteger;
  if (std::holds_alternative<double>(def.value)) {
    return attribute.value_case() == Value::kInteger || attribute.value_case() == Value::kNumber;
  }
  if (std::holds_alternative<std::string>(def.value)) return attribute.value_case() == Value::kText;
  if (attribute.value_case() == Value::kInteger) {
    const int64_t value = attribute.integer();
    attribute.mutable_integers()->mutable_values()->Resize(TimesOf(op, def.name), value);
  }
  return attribute.value_case() == Value::kIntegers;
}

class LayerReader {
 public:
  LayerReader(const LayerOutputs& outputs, job::v1::Graph& graph, std::vector<FileError>& errors)
      : outputs_(outputs), graph_(graph), errors_(errors) {}

  void Read(const YamlNode& list) {
    if (list.kind != YamlNode::Kind::kSequence) {
      return Fail(list.mark, kLayersPath, absl::StrCat("must be a list, found ", Found(list)));
    }
    if (list.items.empty()) return Fail(list.mark, kLayersPath, "is empty, want at least 1 layer");
    if (list.items.size() >= kMaxGraphNodes) {
      return Fail(
          list.mark, kLayersPath,
          absl::StrCat("has ", list.items.size(), " layers, want at most ", kMaxGraphNodes - 1));
    }
    std::vector<const OpDef*> ops;
    for (size_t i = 0; i < list.items.size(); ++i) ops.push_back(LayerOf(list.items[i], i));
    const bool ends_with_loss = ops.back() != nullptr && ops.back()->loss;
    if (ends_with_loss) outputs_.numbers = ops.back()->numeric_targets;
    const size_t before_loss = ops.size() - (ends_with_loss ? 1 : 0);
    for (size_t i = 0; i < ops.size() && failures_ < kMostErrors; ++i) {
      if (ops[i] == nullptr) continue;
      if (ops[i]->loss && i + 1 < ops.size()) {
        Fail(list.items[i].mark, EntryPath(i), "is the loss, want it only as the last layer");
        continue;
      }
      // An unknown layer at the end may be a misspelt loss.
      const bool last = i + 1 == before_loss || (ops.back() == nullptr && i + 2 == ops.size());
      Add(*ops[i], list.items[i], i, last);
    }
    if (!ends_with_loss) {
      AddNode(
          *FindOp(outputs_.numbers ? MeanSquaredErrorLoss::kName : SoftmaxCrossEntropyLoss::kName));
    }
  }

 private:
  int64_t last_features() const {
    return outputs_.numbers ? outputs_.num_outputs : outputs_.num_classes;
  }

  static std::string EntryPath(size_t index) { return absl::StrCat(kLayersPath, "[", index, "]"); }

  void Fail(Mark mark, absl::string_view path, absl::string_view message) {
    if (++failures_ > kMostErrors) return;
    errors_.push_back({mark, absl::StrCat("'", path, "' ", message)});
  }

  const OpDef* LayerOf(const YamlNode& item, size_t index) {
    const bool group = item.kind == YamlNode::Kind::kMap;
    if (group ? item.entries.size() != 1 : item.kind != YamlNode::Kind::kScalar) {
      Fail(item.mark, EntryPath(index),
           absl::StrCat("must be the name of a layer or a group of one key, found ",
                        group ? absl::StrCat(item.entries.size(), " keys") : Found(item)));
      return nullptr;
    }
    const std::string& name = group ? item.entries[0].key : item.scalar;
    const OpDef* const op = FindLayer(name);
    if (op != nullptr) return op;
    Fail(group ? item.entries[0].mark : item.mark, EntryPath(index), Unknown(name));
    return nullptr;
  }

  static std::string Unknown(const std::string& name) {
    const std::string is = absl::StrCat("is the unknown layer '", name.substr(0, kMostShown), "'");
    const std::vector<std::string> names = LayerNames();
    const std::string best =
        FindOp(name) != nullptr && IsLayer(*FindOp(name)) ? LayerName(name) : Nearest(name, names);
    if (!best.empty()) return absl::StrCat(is, " (did you mean '", best, "'?)");
    const auto ops = AllOps();
    if (std::any_of(ops.begin(), ops.end(), [&](const OpDef* op) {
          return op->name == name || LayerName(op->name) == name;
        })) {
      return absl::StrCat(is, ": it reads other values than the one before it, so write a graph");
    }
    return absl::StrCat(is, ", want one of ", absl::StrJoin(names, ", "));
  }

  job::v1::GraphNode& AddNode(const OpDef& op) {
    job::v1::GraphNode& node = *graph_.add_nodes();
    const std::string name = NodeNameOf(op);
    node.set_name(op.loss ? "loss" : absl::StrCat(name, ++counts_[name]));
    node.set_op(op.name);
    return node;
  }

  void Add(const OpDef& op, const YamlNode& item, size_t index, bool last) {
    job::v1::GraphNode& node = AddNode(op);
    const std::string path = absl::StrCat(EntryPath(index), ".", LayerName(op.name));
    const bool group = item.kind == YamlNode::Kind::kMap;
    const size_t failures = failures_;
    if (group) AddAttributes(op, item.entries[0].value, path, node);
    for (const AttributeDef& def : op.attributes) {
      if (!def.required || Has(node, def.name)) continue;
      if (op.name == Gemm::kName && last) {
        job::v1::Attribute& attribute = *node.add_attributes();
        attribute.set_name(def.name);
        attribute.set_integer(last_features());
        continue;
      }
      Fail(group ? item.entries[0].mark : item.mark, absl::StrCat(path, ".", def.name),
           "is required");
    }
    if (last && op.name == Gemm::kName) CheckClasses(node, item, path);
    if (group && failures_ == failures) CheckRanges(op, item.entries[0].value, path, node);
  }

  void CheckRanges(const OpDef& op, const YamlNode& values, const std::string& path,
                   const job::v1::GraphNode& node) {
    for (const LayerFault& fault : FaultsOfLayer(op, node)) {
      const YamlNode* const value = values.Find(fault.attribute);
      Fail(value != nullptr ? value->mark : values.mark, absl::StrCat(path, ".", fault.attribute),
           absl::StrCat("is refused: ", fault.message));
    }
  }

  void CheckClasses(const job::v1::GraphNode& node, const YamlNode& item, const std::string& path) {
    for (const job::v1::Attribute& attribute : node.attributes()) {
      if (attribute.name() != "out_features" || attribute.value_case() != attribute.kInteger ||
          attribute.integer() == last_features()) {
        continue;
      }
      Fail(item.entries[0].mark, path + ".out_features",
           absl::StrCat("is ", attribute.integer(), ", '",
                        outputs_.numbers ? "model.num_outputs" : "model.num_classes", "' is ",
                        last_features(), ": leave it out"));
    }
  }

  static bool Has(const job::v1::GraphNode& node, absl::string_view name) {
    return std::any_of(node.attributes().begin(), node.attributes().end(),
                       [&](const job::v1::Attribute& a) { return a.name() == name; });
  }

  void AddAttributes(const OpDef& op, const YamlNode& values, const std::string& path,
                     job::v1::GraphNode& node) {
    if (values.kind != YamlNode::Kind::kMap) {
      return Fail(values.mark, path,
                  absl::StrCat("must be a group of keys, found ", Found(values)));
    }
    for (const YamlNode::Entry& entry : values.entries) {
      const std::string full = absl::StrCat(path, ".", entry.key.substr(0, kMostShown));
      const AttributeDef* const def = FindAttribute(op, entry.key);
      if (def == nullptr) {
        FailUnknown(op, entry, full);
        continue;
      }
      job::v1::Attribute& attribute = *node.add_attributes();
      attribute.set_name(def->name);
      if (!ReadAttribute(entry.value, attribute) || !Fit(op, *def, attribute)) {
        Fail(entry.value.mark, full,
             absl::StrCat("must be ", TypeOf(*def), ", found ", Found(entry.value)));
      }
    }
  }

  void FailUnknown(const OpDef& op, const YamlNode::Entry& entry, const std::string& path) {
    std::vector<std::string> names;
    for (const AttributeDef& def : op.attributes) names.push_back(def.name);
    const std::string best = Nearest(entry.key, names);
    Fail(entry.mark, path,
         absl::StrCat("is unknown", !best.empty()   ? absl::StrCat(" (did you mean '", best, "'?)")
                                    : names.empty() ? ": the layer has no attributes"
                                                    : absl::StrCat(", want one of ",
                                                                   absl::StrJoin(names, ", "))));
  }

  LayerOutputs outputs_;
  job::v1::Graph& graph_;
  std::vector<FileError>& errors_;
  size_t failures_ = 0;
  std::map<std::string, int> counts_;  // of nodes, by the beginning of their names
};

}  // namespace

std::string LayerName(absl::string_view op) {
  std::string name;
  for (size_t i = 0; i < op.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(op[i]) && absl::ascii_islower(op[i - 1])) name.push_back('_');
    name.push_back(absl::ascii_tolower(op[i]));
  }
  return name;
}

std::vector<std::string> LayerNames() {
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    if (IsLayer(*op)) names.push_back(LayerName(op->name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ReadLayers(const YamlNode& node, const LayerOutputs& outputs, job::v1::Graph& graph,
                std::vector<FileError>& errors) {
  LayerReader(outputs, graph, errors).Read(node);
}

}  // namespace capstan::training::spec
