#include "training/spec/keys.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace capstan::training::spec {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

bool IsPeriod(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type()->name() == "Period";
}

bool IsAttributes(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type()->name() == "Attribute";
}

bool IsDuration(const FieldDescriptor* field) { return absl::EndsWith(field->name(), "_seconds"); }

std::string KeyOf(const FieldDescriptor* field) {
  absl::string_view key = absl::StripSuffix(field->name(), "_seconds");
  if (absl::ConsumePrefix(&key, "backoff_")) return absl::StrCat("backoff.", key);
  return std::string(key);
}

const FieldDescriptor* FieldOf(const Descriptor* type, absl::string_view key) {
  for (int i = 0; i < type->field_count(); ++i) {
    if (KeyOf(type->field(i)) == key) return type->field(i);
  }
  return nullptr;
}

const FieldDescriptor* DurationBeside(const FieldDescriptor* period) {
  return period->containing_type()->FindFieldByName(absl::StrCat(period->name(), "_seconds"));
}

bool IsBesidePeriod(const FieldDescriptor* field) {
  return IsPeriod(FieldOf(field->containing_type(), KeyOf(field)));
}

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

}  // namespace capstan::training::spec
