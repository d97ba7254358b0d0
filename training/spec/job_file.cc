#include "training/spec/job_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "training/spec/nearest.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Keys that docs/interface.md names beyond the fields of JobSpec. Where `only` is set, that value
// is what this version does anyway and is taken; everything else is refused by name.
struct OtherKey {
  const char* path;
  const char* only;  // null: refused whatever the value
};
constexpr OtherKey kOtherKeys[] = {
    {"queue", nullptr},
    {"priority", nullptr},
    {"resources.min_workers", nullptr},
    {"resources.replicas", "1"},
    {"resources.cpus_per_worker", nullptr},
    {"resources.memory_per_worker", nullptr},
    {"resources.node_selector", nullptr},
    {"model.graph", nullptr},
    {"model.layers", nullptr},
    {"data.reader_threads", "1"},
    {"data.transforms", nullptr},
    {"kvstore.update_on_kvstore", "true"},
    {"kvstore.max_staleness", "0"},
    {"kvstore.gradient_compression", "none"},
    {"kvstore.push_timeout", nullptr},
    {"training.accumulate_steps", "1"},
    {"training.gradient_clip_norm", nullptr},
    {"training.optimizer.multi_precision", "false"},
    {"evaluation.smaller_is_better", "false"},
    {"evaluation.stop_when", nullptr},
    {"checkpoint.every", nullptr},
    {"checkpoint.keep_latest", nullptr},
    {"checkpoint.keep_best", nullptr},
    {"checkpoint.resume", "never"},
    {"recovery.max_restarts", "0"},
    {"recovery.backoff", nullptr},
    {"recovery.never_retry_on", nullptr},
    {"limits.termination_grace_period", nullptr},
    {"limits.ttl_after_finished", nullptr},
    {"outputs.export", nullptr},
    {"outputs.metrics.tensorboard", "false"},
    {"outputs.metrics.jsonl", "true"},
};

std::string Join(absl::string_view path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

bool IsPeriod(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type()->name() == "Period";
}

// Durations stand in the file with a unit and without "_seconds" in their names.
bool IsDuration(const FieldDescriptor* field) { return absl::EndsWith(field->name(), "_seconds"); }

std::string KeyOf(const FieldDescriptor* field) {
  return std::string(absl::StripSuffix(field->name(), "_seconds"));
}

const FieldDescriptor* FieldOf(const Descriptor* type, absl::string_view key) {
  for (int i = 0; i < type->field_count(); ++i) {
    if (KeyOf(type->field(i)) == key) return type->field(i);
  }
  return nullptr;
}

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

std::string Found(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kScalar) return KindName(node);
  return absl::StrCat("'", node.scalar.substr(0, 80), node.scalar.size() > 80 ? "..." : "", "'");
}

// JSON's grammar, so that 010, .nan, 1_000 and 0x10 are no numbers.
bool IsDecimal(absl::string_view text, bool integer) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && absl::ascii_isdigit(text[i])) ++i;
    return i - begin;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const size_t first = i;
  const size_t count = digits();
  if (count == 0 || (count > 1 && text[first] == '0')) return false;
  if (integer) return i == text.size();
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

class Binder {
 public:
  explicit Binder(std::vector<FileError>& errors) : errors_(errors) {}

  void BindMessage(const YamlNode& node, absl::string_view path, Message& message) {
    if (node.kind != YamlNode::Kind::kMap) {
      return Fail(node.mark,
                  absl::StrCat(path.empty() ? "a job file" : absl::StrCat("'", path, "'"),
                               " must be a group of keys, found ", Found(node)));
    }
    for (const YamlNode::Entry& entry : node.entries) BindEntry(entry, path, message);
  }

  // Where a path was written, or its nearest group that was.
  Mark MarkOf(absl::string_view path) const {
    std::string at(path);
    while (true) {
      const auto found = marks_.find(at);
      if (found != marks_.end()) return found->second;
      const size_t dot = at.rfind('.');
      if (dot == std::string::npos) return {};
      at.resize(dot);
    }
  }

 private:
  void Fail(Mark mark, std::string message) { errors_.push_back({mark, std::move(message)}); }

  void BindEntry(const YamlNode::Entry& entry, absl::string_view path, Message& message) {
    const std::string full = Join(path, entry.key);
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
      return BindField(entry.value, full, message, field);
    }
    if (TakeOtherKey(entry, full)) return;
    if (full == "outputs" || full == "recovery" || full == "outputs.metrics") {
      if (entry.value.kind != YamlNode::Kind::kMap) {
        return Fail(entry.mark, absl::StrCat("'", full, "' must be a group of keys, found ",
                                             Found(entry.value)));
      }
      for (const YamlNode::Entry& inner : entry.value.entries) {
        BindOther(inner, full);
      }
      return;
    }
    FailUnknown(entry, path, message.GetDescriptor());
  }

  // A key of a group without any field of ours.
  void BindOther(const YamlNode::Entry& entry, absl::string_view path) {
    const std::string full = Join(path, entry.key);
    if (TakeOtherKey(entry, full)) return;
    if (full == "outputs.metrics" && entry.value.kind == YamlNode::Kind::kMap) {
      for (const YamlNode::Entry& inner : entry.value.entries) BindOther(inner, full);
      return;
    }
    FailUnknown(entry, path, nullptr);
  }

  bool TakeOtherKey(const YamlNode::Entry& entry, absl::string_view full) {
    for (const OtherKey& other : kOtherKeys) {
      if (full != other.path) continue;
      const YamlNode* value = &entry.value;
      if (full == "kvstore.gradient_compression" && value->kind == YamlNode::Kind::kMap &&
          value->entries.size() == 1 && value->entries[0].key == "type") {
        value = &value->entries[0].value;  // {type: none}
      }
      if (other.only != nullptr && value->kind == YamlNode::Kind::kScalar && !value->quoted &&
          value->scalar == other.only) {
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
    for (int i = 0; type != nullptr && i < type->field_count(); ++i)
      names.push_back(KeyOf(type->field(i)));
    for (const OtherKey& other : kOtherKeys) {
      absl::string_view rest = other.path;
      if (!path.empty() && !absl::ConsumePrefix(&rest, absl::StrCat(path, "."))) continue;
      names.push_back(std::string(rest.substr(0, rest.find('.'))));
    }
    const std::string best = Nearest(entry.key, names);
    Fail(entry.mark,
         absl::StrCat("unknown field '", Join(path, entry.key.substr(0, 80)), "'",
                      best.empty() ? "" : absl::StrCat(" (did you mean '", best, "'?)")));
  }

  void BindField(const YamlNode& node, const std::string& path, Message& message,
                 const FieldDescriptor* field) {
    const Reflection& reflection = *message.GetReflection();
    if (field->is_map()) return BindMap(node, path, message, field);
    if (field->is_repeated()) {
      if (node.kind != YamlNode::Kind::kSequence) {
        return Fail(node.mark, absl::StrCat("'", path, "' must be a list, found ", Found(node)));
      }
      for (const YamlNode& item : node.items) BindScalar(item, path, message, field);
      return;
    }
    if (IsPeriod(field)) return BindPeriod(node, path, *reflection.MutableMessage(&message, field));
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE)
      return BindScalar(node, path, message, field);
    Message& inner = *reflection.MutableMessage(&message, field);
    const bool by_name = field->message_type()->name() == "Initializer" ||
                         field->message_type()->name() == "LrSchedule";
    if (by_name && node.kind == YamlNode::Kind::kScalar) {
      return BindScalar(node, path, inner, inner.GetDescriptor()->FindFieldByName("name"));
    }
    BindMessage(node, path, inner);
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

  void BindPeriod(const YamlNode& node, const std::string& path, Message& period) {
    const std::vector<std::string> words = absl::StrSplit(
        node.kind == YamlNode::Kind::kScalar ? node.scalar : "", ' ', absl::SkipEmpty());
    int64_t count = 0;
    const bool number =
        words.size() == 2 && IsDecimal(words[0], true) && absl::SimpleAtoi(words[0], &count);
    const bool epochs = number && (words[1] == "epoch" || words[1] == "epochs");
    const bool steps = number && (words[1] == "step" || words[1] == "steps");
    if (!epochs && !steps) {
      return Fail(node.mark,
                  absl::StrCat("'", path, "' must be like '10 epochs' or '500 steps', found ",
                               Found(node)));
    }
    const FieldDescriptor* unit =
        period.GetDescriptor()->FindFieldByName(epochs ? "epochs" : "steps");
    period.GetReflection()->SetInt64(&period, unit, count);
  }

  void WrongType(const YamlNode& node, absl::string_view path, absl::string_view want) {
    Fail(node.mark, absl::StrCat("'", path, "' must be ", want, ", found ", Found(node)));
  }

  template <class Int>
  void BindInteger(const YamlNode& node, const std::string& path, Message& message,
                   const FieldDescriptor* field,
                   void (Reflection::*set)(Message*, const FieldDescriptor*, Int) const,
                   void (Reflection::*add)(Message*, const FieldDescriptor*, Int) const) {
    if (node.quoted || !IsDecimal(node.scalar, true))
      return WrongType(node, path, "a whole number");
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
          return WrongType(node, path, "a number");
        }
        return field->is_repeated() ? reflection.AddDouble(&message, field, value)
                                    : reflection.SetDouble(&message, field, value);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        if (node.quoted || (node.scalar != "true" && node.scalar != "false"))
          return WrongType(node, path, "true or false");
        return reflection.SetBool(&message, field, node.scalar == "true");
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection.SetString(&message, field, node.scalar);
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
  std::map<std::string, Mark> marks_;
};

// Puts the value of `--set path=text` into the tree.
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
  YamlNode* node = &root;
  for (const std::string& key : keys) {
    if (node->kind != YamlNode::Kind::kMap) {
      node->kind = YamlNode::Kind::kMap;
      node->entries.clear();
    }
    YamlNode* next = node->Find(key);
    if (next == nullptr) {
      node->entries.push_back({key, {}, {}});
      next = &node->entries.back().value;
    }
    node = next;
  }
  value.mark = {};
  *node = std::move(value);
}

void CollectKeys(const Descriptor* type, const std::string& path, std::vector<KeyInfo>& out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string full = Join(path, KeyOf(field));
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !IsPeriod(field) &&
        !field->is_map()) {
      CollectKeys(field->message_type(), full, out);
    } else {
      out.push_back({full, true});
    }
  }
}

std::string Quote(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + "\"";
}

std::string NumberText(double value) {
  for (int precision = 6; precision <= 17; ++precision) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.*g", precision, value);
    double back = 0;
    if (absl::SimpleAtod(buffer, &back) && back == value) return buffer;
  }
  return absl::StrCat(value);
}

std::string PeriodText(const job::v1::Period& period) {
  const int64_t count = period.has_epochs() ? period.epochs() : period.steps();
  return absl::StrCat(count, period.has_epochs() ? " epoch" : " step", count == 1 ? "" : "s");
}

std::string ScalarText(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(many ? r.GetRepeatedInt32(message, field, index)
                               : r.GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(many ? r.GetRepeatedInt64(message, field, index)
                               : r.GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(many ? r.GetRepeatedUInt64(message, field, index)
                               : r.GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(NumberText(many ? r.GetRepeatedDouble(message, field, index)
                                          : r.GetDouble(message, field)),
                          IsDuration(field) ? "s" : "");
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, field) ? "true" : "false";
    default: {
      const std::string text = r.GetString(message, field);
      const bool plain = !text.empty() &&
                         std::all_of(text.begin(), text.end(),
                                     [](char c) {
                                       return absl::ascii_isalnum(c) || c == '_' || c == '-' ||
                                              c == '/' || c == '.';
                                     }) &&
                         !IsDecimal(text, false) && text != "true" && text != "false" &&
                         text != "null" && absl::ascii_isalpha(text[0]);
      return plain ? text : Quote(text);
    }
  }
}

void Emit(const Message& message, int indent, std::string& out) {
  const Reflection& reflection = *message.GetReflection();
  const Descriptor* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const bool present = field->is_repeated()    ? reflection.FieldSize(message, field) > 0
                         : field->has_presence() ? reflection.HasField(message, field)
                                                 : true;
    if (!present) continue;
    if (!field->is_repeated() && !field->has_presence() && field->name() == "description" &&
        reflection.GetString(message, field).empty()) {
      continue;
    }
    absl::StrAppend(&out, std::string(indent, ' '), KeyOf(field), ":");
    if (field->is_map()) {
      out += "\n";
      std::map<std::string, std::string> sorted;  // the map's own order is not fixed
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        const Message& pair = reflection.GetRepeatedMessage(message, field, k);
        sorted[pair.GetReflection()->GetString(pair, field->message_type()->map_key())] =
            pair.GetReflection()->GetString(pair, field->message_type()->map_value());
      }
      for (const auto& [key, value] : sorted) {
        absl::StrAppend(&out, std::string(indent + 2, ' '), Quote(key), ": ", Quote(value), "\n");
      }
    } else if (field->is_repeated()) {
      out += " [";
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        absl::StrAppend(&out, k == 0 ? "" : ", ", ScalarText(message, field, k));
      }
      out += "]\n";
    } else if (IsPeriod(field)) {
      absl::StrAppend(
          &out, " ",
          PeriodText(static_cast<const job::v1::Period&>(reflection.GetMessage(message, field))),
          "\n");
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      std::string inner;
      Emit(reflection.GetMessage(message, field), indent + 2, inner);
      absl::StrAppend(&out, inner.empty() ? " {}" : "", "\n", inner);
    } else {
      absl::StrAppend(&out, " ", ScalarText(message, field, 0), "\n");
    }
  }
}

}  // namespace

JobFile ParseJobFile(absl::string_view text,
                     const std::vector<std::pair<std::string, std::string>>& overrides) {
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
  Binder binder(file.errors);
  binder.BindMessage(root, "", file.spec);
  if (file.errors.empty()) {
    for (Violation& violation : Validate(file.spec)) {
      file.errors.push_back({binder.MarkOf(violation.path), std::move(violation.message)});
    }
  }
  std::stable_sort(file.errors.begin(), file.errors.end(),
                   [](const FileError& a, const FileError& b) {
                     return a.mark.line != b.mark.line ? a.mark.line < b.mark.line
                                                       : a.mark.column < b.mark.column;
                   });
  return file;
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
  for (const OtherKey& other : kOtherKeys) out.push_back({other.path, other.only != nullptr});
  return out;
}

std::string ToYaml(const job::v1::JobSpec& spec) {
  std::string out;
  Emit(spec, 0, out);
  return out;
}

}  // namespace capstan::training::spec
