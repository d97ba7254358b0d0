// Writes a spec as a job file.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/spec/job_file.h"
#include "training/spec/keys.h"

namespace capstan::training::spec {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string Quote(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (absl::ascii_iscntrl(c)) {  // unescaped, a line end would be read back as a space
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
      continue;
    }
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

// Writes the form that tells the type (keys.h).
std::string AttributeText(const job::v1::Attribute& attribute) {
  switch (attribute.value_case()) {
    case job::v1::Attribute::kInteger:
      return absl::StrCat(attribute.integer());
    case job::v1::Attribute::kNumber: {
      const std::string text = NumberText(attribute.number());
      return IsDecimal(text, true) ? text + ".0" : text;
    }
    case job::v1::Attribute::kIntegers:
      return absl::StrCat("[", absl::StrJoin(attribute.integers().values(), ", "), "]");
    default:
      return Quote(attribute.text());
  }
}

std::string AttributesText(const job::v1::GraphNode& node) {
  return absl::StrCat("{",
                      absl::StrJoin(node.attributes(), ", ",
                                    [](std::string* out, const job::v1::Attribute& attribute) {
                                      absl::StrAppend(out, Quote(attribute.name()), ": ",
                                                      AttributeText(attribute));
                                    }),
                      "}");
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
      if (!many && IsBesidePeriod(field) && r.GetDouble(message, field) == 0) {
        return std::string(kNever);
      }
      return absl::StrCat(NumberText(many ? r.GetRepeatedDouble(message, field, index)
                                          : r.GetDouble(message, field)),
                          IsDuration(field) ? "s" : "");
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, field) ? "true" : "false";
    default: {
      const std::string text =
          many ? r.GetRepeatedString(message, field, index) : r.GetString(message, field);
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
  std::string group;  // the group whose line was written last
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
    std::string key = KeyOf(field);
    int at = indent;
    if (const size_t dot = key.find('.'); dot != std::string::npos) {
      if (group != key.substr(0, dot)) {
        group = key.substr(0, dot);
        absl::StrAppend(&out, std::string(at, ' '), group, ":\n");
      }
      key.erase(0, dot + 1);
      at += 2;
    }
    absl::StrAppend(&out, std::string(at, ' '), key, ":");
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
    } else if (IsAttributes(field)) {
      absl::StrAppend(&out, " ", AttributesText(static_cast<const job::v1::GraphNode&>(message)),
                      "\n");
    } else if (field->is_repeated() && !IsPeriod(field) &&
               field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      out += "\n";
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        std::string item;
        Emit(reflection.GetRepeatedMessage(message, field, k), indent + 4, item);
        // The dash replaces the last two blanks before the item.
        absl::StrAppend(&out, std::string(indent + 2, ' '), "- ",
                        item.empty() ? "{}\n" : item.substr(indent + 4));
      }
    } else if (field->is_repeated()) {
      out += " [";
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        absl::StrAppend(&out, k == 0 ? "" : ", ",
                        IsPeriod(field) ? PeriodText(static_cast<const job::v1::Period&>(
                                              reflection.GetRepeatedMessage(message, field, k)))
                                        : ScalarText(message, field, k));
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

std::string ToYaml(const job::v1::JobSpec& spec) {
  std::string out;
  Emit(spec, 0, out);
  return out;
}

}  // namespace capstan::training::spec
