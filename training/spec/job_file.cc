#include "training/spec/job_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "training/spec/keys.h"
#include "training/spec/layers.h"
#include "training/spec/nearest.h"
#include "training/spec/rules.h"
#include "training/spec/validate.h"
#include "training/spec/yaml_attribute.h"

namespace capstan::training::spec {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Keys of docs/interface.md that are not fields of JobSpec. If `only` is set, that value is
// accepted, because this version behaves that way anyway. Everything else is refused by name.
struct OtherKey {
  const char* path;
  const char* only;  // null: every value is refused
};
constexpr OtherKey kOtherKeys[] = {
    {"queue", nullptr},
    {"priority", nullptr},
    {"resources.replicas", "1"},
    {"resources.cpus_per_worker", nullptr},
    {"resources.memory_per_worker", nullptr},
    {"resources.node_selector", nullptr},
    {"kvstore.push_timeout", nullptr},
    {"evaluation.smaller_is_better", "false"},
    {"evaluation.stop_when", nullptr},
    {"checkpoint.resume", "auto"},
    {"limits.termination_grace_period", nullptr},
    {"outputs.export", nullptr},
    {"outputs.metrics.jsonl", "true"},
};

std::string Join(absl::string_view path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

// The message for a number, true or false in quotes, which is a text. Empty if the value would be
// wrong even without its quotes.
std::string TextInQuotes(const YamlNode& node, bool decimal) {
  if (node.kind != YamlNode::Kind::kScalar || !node.quoted || !decimal) return "";
  return absl::StrCat("is the text \"", node.scalar, "\"; write ", node.scalar, " without quotes");
}

class Binder {
 public:
  // `read_graph` may be empty. `numbers`: targets are numbers.
  Binder(std::vector<FileError>& errors, Marks& marks, const GraphFileReader& read_graph,
         bool numbers)
      : errors_(errors), marks_(marks), read_graph_(read_graph), numbers_(numbers) {}

  void BindMessage(const YamlNode& node, absl::string_view path, Message& message) {
    if (node.kind != YamlNode::Kind::kMap) {
      return Fail(node.mark,
                  absl::StrCat(path.empty() ? "a job file" : absl::StrCat("'", path, "'"),
                               " must be a group of keys, found ", Found(node)));
    }
    for (const YamlNode::Entry& entry : node.entries) BindEntry(entry, path, message);
    if (path == "model") BindLayers(node, static_cast<job::v1::Model&>(message));
  }

  // The key was written, and neither it nor anything below it has an error.
  bool IsSound(const std::string& path) const { return sound_.count(path) > 0; }

 private:
  void Fail(Mark mark, std::string message) { errors_.push_back({mark, std::move(message)}); }

  void BindEntry(const YamlNode::Entry& entry, absl::string_view path, Message& message) {
    if (absl::StrContains(entry.key, '.')) {  // no key of the file contains a dot
      return FailUnknown(entry, path, message.GetDescriptor());
    }
    const std::string full = Join(path, entry.key);
    if (full == "recovery.backoff") return BindGroup(entry, path, message);
    const FieldDescriptor* field = FieldOf(message.GetDescriptor(), entry.key);
    if (field != nullptr) {
      marks_[full] = entry.value.kind == YamlNode::Kind::kScalar ? entry.value.mark : entry.mark;
      if (field->containing_oneof() != nullptr && field->real_containing_oneof() != nullptr) {
        const Reflection& reflection = *message.GetReflection();
        if (reflection.HasOneof(message, field->containing_oneof())) {
          const FieldDescriptor* other =
              reflection.GetOneofFieldDescriptor(message, field->containing_oneof());
          return Fail(entry.mark, absl::StrCat("'", full, "' and '", Join(path, other->name()),
                                               "' exclude each other: give one of them"));
        }
      }
      const size_t errors = errors_.size();
      BindField(entry.value, full, message, field);
      if (errors_.size() == errors) sound_.insert(full);
      return;
    }
    BindOther(entry, path, message.GetDescriptor());
  }

  // Binds a group of keys whose fields lie in `message` itself.
  void BindGroup(const YamlNode::Entry& entry, absl::string_view path, Message& message) {
    const std::string full = Join(path, entry.key);
    if (entry.value.kind != YamlNode::Kind::kMap) {
      return Fail(entry.mark,
                  absl::StrCat("'", full, "' must be a group of keys, found ", Found(entry.value)));
    }
    for (const YamlNode::Entry& inner : entry.value.entries) {
      const FieldDescriptor* field =
          FieldOf(message.GetDescriptor(), absl::StrCat(entry.key, ".", inner.key));
      const std::string inner_path = Join(full, inner.key);
      if (field == nullptr) {
        Fail(inner.mark, absl::StrCat("unknown field '", inner_path.substr(0, 120), "'"));
        continue;
      }
      marks_[inner_path] = inner.value.mark;
      const size_t errors = errors_.size();
      BindScalar(inner.value, inner_path, message, field);
      if (errors_.size() == errors) sound_.insert(inner_path);
    }
  }

  // The rest of the group is bound. The list becomes a graph.
  void BindLayers(const YamlNode& group, job::v1::Model& model) {
    for (const YamlNode::Entry& entry : group.entries) {
      if (entry.key != "layers") continue;
      for (const char* const other : {"name", "graph", "dropout"}) {
        if (group.Find(other) == nullptr) continue;
        return Fail(entry.mark, absl::StrCat("'", kLayersPath, "' and 'model.", other,
                                             "' exclude each other: give one of them"));
      }
      if (group.Find("num_classes") != nullptr && !model.has_num_classes()) return;  // has an error
      if (group.Find("num_outputs") != nullptr && !model.has_num_outputs()) return;
      const size_t errors = errors_.size();
      LayerOutputs outputs;
      if (model.has_num_classes()) outputs.num_classes = model.num_classes();
      if (model.has_num_outputs()) outputs.num_outputs = model.num_outputs();
      outputs.numbers = numbers_;
      ReadLayers(entry.value, outputs, *model.mutable_graph(), errors_);
      marks_[std::string(kLayersPath)] = marks_["model.graph"] = entry.mark;
      if (errors_.size() == errors) sound_.insert(std::string(kLayersPath));
    }
  }

  // Handles a key that is not a field of `type`.
  void BindOther(const YamlNode::Entry& entry, absl::string_view path, const Descriptor* type) {
    const std::string full = Join(path, entry.key);
    if (full == kLayersPath) return;  // needs the other keys of its group
    if (!absl::StrContains(entry.key, '.') && TakeOtherKey(entry, full)) return;
    FailUnknown(entry, path, type);
  }

  bool TakeOtherKey(const YamlNode::Entry& entry, absl::string_view full) {
    for (const OtherKey& other : kOtherKeys) {
      if (full != other.path) continue;
      const YamlNode* const value = &entry.value;
      if (other.only != nullptr && value->kind == YamlNode::Kind::kScalar &&
          value->scalar == other.only) {
        const std::string text =
            TextInQuotes(*value, IsDecimal(other.only, true) || IsTruth(other.only));
        if (!text.empty()) Fail(value->mark, absl::StrCat("'", full, "' ", text));
        return true;
      }
      Fail(entry.mark,
           absl::StrCat("'", full, "' is not supported in this version",
                        other.only == nullptr ? "" : absl::StrCat(" (only ", other.only, " is)")));
      return true;
    }
    return false;
  }

  void FailUnknown(const YamlNode::Entry& entry, absl::string_view path, const Descriptor* type) {
    std::vector<std::string> names;
    for (int i = 0; i < type->field_count(); ++i)
      names.push_back(KeyOf(type->field(i)).substr(0, KeyOf(type->field(i)).find('.')));
    for (const OtherKey& other : kOtherKeys) {
      absl::string_view rest = other.path;
      if (!path.empty() && !absl::ConsumePrefix(&rest, absl::StrCat(path, "."))) continue;
      names.push_back(std::string(rest.substr(0, rest.find('.'))));
    }
    if (path == "model") names.push_back("layers");
    const std::string best = Nearest(entry.key, names);
    Fail(entry.mark,
         absl::StrCat("unknown field '", Join(path, entry.key.substr(0, 80)), "'",
                      best.empty() ? "" : absl::StrCat(" (did you mean '", best, "'?)")));
  }

  void BindField(const YamlNode& node, const std::string& path, Message& message,
                 const FieldDescriptor* field) {
    const Reflection& reflection = *message.GetReflection();
    if (field->is_map()) return BindMap(node, path, message, field);
    if (IsAttributes(field)) return BindAttributes(node, path, message, field);
    if (field->is_repeated()) {
      if (node.kind != YamlNode::Kind::kSequence) {
        return Fail(node.mark, absl::StrCat("'", path, "' must be a list, found ", Found(node)));
      }
      // The spec cannot tell an empty list from a missing one.
      if (node.items.empty()) {
        return Fail(node.mark, absl::StrCat("'", path, "' is empty: leave it out for its default"));
      }
      for (size_t i = 0; i < node.items.size(); ++i) {
        const YamlNode& item = node.items[i];
        if (IsPeriod(field)) {
          BindPeriod(item, path, *reflection.AddMessage(&message, field));
        } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
          const std::string item_path = absl::StrCat(path, "[", i, "]");
          marks_[item_path] = item.mark;
          const size_t errors = errors_.size();
          BindMessage(item, item_path, *reflection.AddMessage(&message, field));
          if (errors_.size() == errors) sound_.insert(item_path);
        } else {
          BindScalar(item, path, message, field);
        }
      }
      return;
    }
    if (IsPeriod(field)) return BindPeriodOrDuration(node, path, message, field);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE)
      return BindScalar(node, path, message, field);
    Message& inner = *reflection.MutableMessage(&message, field);
    const std::string& type = field->message_type()->name();
    const char* const short_form = type == "Initializer" || type == "LrSchedule" ? "name"
                                   : type == "GradientCompression"               ? "type"
                                                                                 : nullptr;
    if (short_form != nullptr && node.kind == YamlNode::Kind::kScalar) {
      sound_.insert(Join(path, short_form));
      return BindScalar(node, path, inner, inner.GetDescriptor()->FindFieldByName(short_form));
    }
    if (type == "Graph" && node.kind == YamlNode::Kind::kScalar && read_graph_) {
      return BindGraphFile(node, path, static_cast<job::v1::Graph&>(inner));
    }
    BindMessage(node, path, inner);
  }

  void BindGraphFile(const YamlNode& node, const std::string& path, job::v1::Graph& graph) {
    absl::StatusOr<job::v1::Graph> read = read_graph_(node.scalar, numbers_);
    if (!read.ok()) {
      return Fail(node.mark, absl::StrCat("'", path, "': ", read.status().message()));
    }
    graph = *std::move(read);
  }

  void BindMap(const YamlNode& node, const std::string& path, Message& message,
               const FieldDescriptor* field) {
    if (node.kind != YamlNode::Kind::kMap) {
      return Fail(node.mark,
                  absl::StrCat("'", path, "' must be a group of keys, found ", Found(node)));
    }
    const Descriptor* type = field->message_type();
    for (const YamlNode::Entry& entry : node.entries) {
      if (entry.value.kind != YamlNode::Kind::kScalar) {
        Fail(entry.mark, absl::StrCat("'", path, ".", entry.key, "' must be a text, found ",
                                      Found(entry.value)));
        continue;
      }
      Message& pair = *message.GetReflection()->AddMessage(&message, field);
      pair.GetReflection()->SetString(&pair, type->map_key(), entry.key);
      pair.GetReflection()->SetString(&pair, type->map_value(), entry.value.scalar);
    }
  }

  void BindAttributes(const YamlNode& node, const std::string& path, Message& message,
                      const FieldDescriptor* field) {
    if (node.kind != YamlNode::Kind::kMap) {
      return Fail(node.mark,
                  absl::StrCat("'", path, "' must be a group of keys, found ", Found(node)));
    }
    for (const YamlNode::Entry& entry : node.entries) {
      auto& attribute =
          static_cast<job::v1::Attribute&>(*message.GetReflection()->AddMessage(&message, field));
      attribute.set_name(entry.key);
      if (!ReadAttribute(entry.value, attribute)) {
        Fail(entry.value.mark,
             absl::StrCat("'", Join(path, entry.key.substr(0, 80)),
                          "' must be a whole number, a number, true or false, a text or a list of "
                          "whole numbers, found ",
                          Found(entry.value)));
      }
    }
  }

  void BindPeriodOrDuration(const YamlNode& node, const std::string& path, Message& message,
                            const FieldDescriptor* field) {
    const Reflection& reflection = *message.GetReflection();
    const FieldDescriptor* duration = DurationBeside(field);
    double seconds = 0;
    if (duration != nullptr && node.kind == YamlNode::Kind::kScalar &&
        (node.scalar == kNever || ParseDuration(node.scalar, seconds))) {
      return reflection.SetDouble(&message, duration, seconds);
    }
    BindPeriod(node, path, *reflection.MutableMessage(&message, field),
               duration == nullptr ? "'10 epochs' or '500 steps'"
                                   : "'10 epochs', '500 steps', '30s' or 'never'");
  }

  void BindPeriod(const YamlNode& node, const std::string& path, Message& period,
                  absl::string_view like = "'10 epochs' or '500 steps'") {
    const std::vector<std::string> words = absl::StrSplit(
        node.kind == YamlNode::Kind::kScalar ? node.scalar : "", ' ', absl::SkipEmpty());
    int64_t count = 0;
    const bool number =
        words.size() == 2 && IsDecimal(words[0], true) && absl::SimpleAtoi(words[0], &count);
    const bool epochs = number && (words[1] == "epoch" || words[1] == "epochs");
    const bool steps = number && (words[1] == "step" || words[1] == "steps");
    if (!epochs && !steps) {
      return Fail(node.mark,
                  absl::StrCat("'", path, "' must be like ", like, ", found ", Found(node)));
    }
    const FieldDescriptor* unit =
        period.GetDescriptor()->FindFieldByName(epochs ? "epochs" : "steps");
    period.GetReflection()->SetInt64(&period, unit, count);
  }

  // `decimal`: if the value is in quotes, it would be right without them.
  void WrongType(const YamlNode& node, absl::string_view path, absl::string_view want,
                 bool decimal = false) {
    const std::string text = TextInQuotes(node, decimal);
    Fail(node.mark,
         absl::StrCat(
             "'", path, "' ",
             text.empty() ? absl::StrCat("must be ", want, ", found ", Found(node)) : text));
  }

  template <class Int>
  void BindInteger(const YamlNode& node, const std::string& path, Message& message,
                   const FieldDescriptor* field,
                   void (Reflection::*set)(Message*, const FieldDescriptor*, Int) const,
                   void (Reflection::*add)(Message*, const FieldDescriptor*, Int) const) {
    const bool decimal = IsDecimal(node.scalar, true);
    if (node.quoted || !decimal) return WrongType(node, path, "a whole number", decimal);
    Int value = 0;
    if (!absl::SimpleAtoi(node.scalar, &value)) {
      return WrongType(node, path,
                       absl::StrCat("between ", std::numeric_limits<Int>::min(), " and ",
                                    std::numeric_limits<Int>::max()));
    }
    const Reflection& reflection = *message.GetReflection();
    (reflection.*(field->is_repeated() ? add : set))(&message, field, value);
  }

  void BindScalar(const YamlNode& node, const std::string& path, Message& message,
                  const FieldDescriptor* field) {
    const Reflection& reflection = *message.GetReflection();
    if (node.kind != YamlNode::Kind::kScalar) return WrongType(node, path, "a single value");
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return BindInteger<int32_t>(node, path, message, field, &Reflection::SetInt32,
                                    &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return BindInteger<int64_t>(node, path, message, field, &Reflection::SetInt64,
                                    &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT64:
        return BindInteger<uint64_t>(node, path, message, field, &Reflection::SetUInt64,
                                     &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value = 0;
        if (IsDuration(field)) {
          if (!ParseDuration(node.scalar, value))
            return WrongType(node, path, "a duration like 30s, 5m, 4h or 7d");
        } else if (node.quoted || !IsDecimal(node.scalar, false) ||
                   !absl::SimpleAtod(node.scalar, &value) || !std::isfinite(value)) {
          return WrongType(node, path, "a number", IsDecimal(node.scalar, false));
        }
        return field->is_repeated() ? reflection.AddDouble(&message, field, value)
                                    : reflection.SetDouble(&message, field, value);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        if (node.quoted || !IsTruth(node.scalar))
          return WrongType(node, path, "true or false", IsTruth(node.scalar));
        return reflection.SetBool(&message, field, node.scalar == "true");
      case FieldDescriptor::CPPTYPE_STRING:
        return field->is_repeated() ? reflection.AddString(&message, field, node.scalar)
                                    : reflection.SetString(&message, field, node.scalar);
      default:
        return WrongType(node, path, "another kind of value");
    }
  }

  static bool ParseDuration(absl::string_view text, double& seconds) {
    if (text.empty()) return false;
    double unit = 0;
    switch (text.back()) {
      case 's':
        unit = 1;
        break;
      case 'm':
        unit = 60;
        break;
      case 'h':
        unit = 3600;
        break;
      case 'd':
        unit = 86400;
        break;
      default:
        return false;
    }
    text.remove_suffix(1);
    if (!IsDecimal(text, false) || !absl::SimpleAtod(text, &seconds)) return false;
    seconds *= unit;
    return std::isfinite(seconds);
  }

  std::vector<FileError>& errors_;
  Marks& marks_;
  const GraphFileReader& read_graph_;
  const bool numbers_;
  std::set<std::string> sound_;
};

// Whether `training.loss` says that targets are numbers. The model's keys may stand before it.
bool SaysNumbers(YamlNode& root) {
  YamlNode* const training = root.Find("training");
  const YamlNode* const loss = training == nullptr ? nullptr : training->Find("loss");
  return loss != nullptr && loss->scalar == kMeanSquaredError;
}

bool IsKeyOrGroup(const std::string& path) {
  for (const KeyInfo& key : AllKeys()) {
    if (key.path == path || absl::StartsWith(key.path, path + ".")) return true;
  }
  return false;
}

// Does nothing if the key does not exist.
void Remove(YamlNode& root, const std::vector<std::string>& keys) {
  YamlNode* node = &root;
  for (size_t i = 0; i + 1 < keys.size() && node != nullptr; ++i) node = node->Find(keys[i]);
  if (node == nullptr) return;
  auto& entries = node->entries;
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [&](const YamlNode::Entry& e) { return e.key == keys.back(); }),
                entries.end());
}

// The value was not in the file.
void ForgetMarks(YamlNode& node) {
  node.mark = {};
  for (YamlNode& item : node.items) ForgetMarks(item);
  for (YamlNode::Entry& entry : node.entries) {
    entry.mark = {};
    ForgetMarks(entry.value);
  }
}

// Puts the value of `--set path=text` into the tree. Null removes the key.
void Override(YamlNode& root, const std::string& path, const std::string& text,
              std::vector<FileError>& errors) {
  std::vector<YamlError> problems;
  YamlNode value = ParseYaml(text, problems);
  const std::vector<std::string> keys = absl::StrSplit(path, '.');
  for (const std::string& key : keys) {
    if (key.empty()) problems.push_back({{}, "the key must be like training.epochs"});
  }
  if (!problems.empty()) {
    errors.push_back({{}, absl::StrCat("--set ", path, "=", text, ": ", problems[0].message)});
    return;
  }
  // An unknown key stays, so that an error names it. An empty text is not treated as null, because
  // it may come from an unset shell variable.
  if (value.kind == YamlNode::Kind::kNull && !absl::StripAsciiWhitespace(text).empty() &&
      IsKeyOrGroup(path)) {
    return Remove(root, keys);
  }
  YamlNode* node = &root;
  for (const std::string& key : keys) {
    node->kind = YamlNode::Kind::kMap;  // other kinds have no entries
    YamlNode* next = node->Find(key);
    if (next == nullptr) {
      node->entries.push_back({key, {}, {}});
      next = &node->entries.back().value;
    }
    node = next;
  }
  ForgetMarks(value);
  *node = std::move(value);
}

void CollectKeys(const Descriptor* type, const std::string& path, std::vector<KeyInfo>& out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (FieldOf(type, KeyOf(field)) != field) continue;  // every_seconds, whose key is `every`
    const std::string full = Join(path, KeyOf(field));
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !IsPeriod(field) &&
        !field->is_repeated()) {
      CollectKeys(field->message_type(), full, out);
    } else {
      out.push_back({full, true});
    }
  }
}

}  // namespace

JobFile ParseJobFile(absl::string_view text,
                     const std::vector<std::pair<std::string, std::string>>& overrides,
                     const GraphFileReader& read_graph) {
  JobFile file;
  if (text.size() > (1 << 20)) {
    file.errors.push_back(
        {{1, 1}, absl::StrCat("a job file has at most 1048576 bytes, this one has ", text.size())});
    return file;
  }
  std::vector<YamlError> syntax;
  YamlNode root = ParseYaml(text, syntax);
  for (YamlError& error : syntax) file.errors.push_back({error.mark, std::move(error.message)});
  for (const auto& [path, value] : overrides) Override(root, path, value, file.errors);
  const bool is_yaml = file.errors.empty();
  Binder binder(file.errors, file.marks, read_graph, SaysNumbers(root));
  // If the text cannot be read at all, everything would be reported as missing.
  if (syntax.empty() || root.kind != YamlNode::Kind::kNull) {
    binder.BindMessage(root, "", file.spec);
  }
  const bool is_bound = file.errors.empty();
  if (is_yaml) {
    for (Violation& violation : Validate(file.spec)) {
      // A missing key or a contradiction may only follow from an error above.
      if (!is_bound && !(violation.alone && binder.IsSound(violation.path))) continue;
      // The spec cannot tell a written 0 from a missing value.
      if (violation.path == "version" && file.spec.version() == 0 && binder.IsSound("version")) {
        violation.message = "'version' must be 1, found 0";
      }
      file.errors.push_back({MarkOf(file.marks, violation.path), std::move(violation.message)});
    }
  }
  std::stable_sort(file.errors.begin(), file.errors.end(),
                   [](const FileError& a, const FileError& b) {
                     return a.mark.line != b.mark.line ? a.mark.line < b.mark.line
                                                       : a.mark.column < b.mark.column;
                   });
  return file;
}

Mark MarkOf(const Marks& marks, absl::string_view path) {
  std::string at(path);
  while (true) {
    const auto found = marks.find(at);
    if (found != marks.end()) return found->second;
    const size_t dot = at.rfind('.');
    if (dot == std::string::npos) return {};
    at.resize(dot);
  }
}

std::string FormatErrors(absl::string_view filename, const std::vector<FileError>& errors) {
  std::string out;
  for (const FileError& error : errors) {
    absl::StrAppend(&out, filename);
    if (error.mark.line > 0) absl::StrAppend(&out, ":", error.mark.line, ":", error.mark.column);
    absl::StrAppend(&out, ": error: ", error.message, "\n");
  }
  return out;
}

std::vector<KeyInfo> AllKeys() {
  std::vector<KeyInfo> out;
  CollectKeys(job::v1::JobSpec::descriptor(), "", out);
  out.push_back({std::string(kLayersPath), true});
  for (const OtherKey& other : kOtherKeys) out.push_back({other.path, other.only != nullptr});
  return out;
}

}  // namespace capstan::training::spec
