#include "services/proto_json/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/timestamp/timestamp.h"
#include "services/visible_text/visible_text.h"

namespace capstan::services {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// JOB_STATE_RUNNING of JobState -> RUNNING.
std::string EnumText(const google::protobuf::EnumValueDescriptor& value) {
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  prefix += '_';
  return absl::StartsWith(value.name(), prefix) ? value.name().substr(prefix.size()) : value.name();
}

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// The value of a singular field (index < 0) or of one element.
Json Value(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  const FieldDescriptor* const f = &field;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, f) : r.GetRepeatedInt32(message, f, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, f) : r.GetRepeatedInt64(message, f, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, f) : r.GetRepeatedUInt32(message, f, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, f) : r.GetRepeatedUInt64(message, f, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(one ? r.GetDouble(message, f) : r.GetRepeatedDouble(message, f, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(one ? r.GetFloat(message, f) : r.GetRepeatedFloat(message, f, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, f) : r.GetRepeatedBool(message, f, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(one ? *r.GetEnum(message, f) : *r.GetRepeatedEnum(message, f, index));
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string text = one ? r.GetString(message, f) : r.GetRepeatedString(message, f, index);
      return field.type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ProtoJson(one ? r.GetMessage(message, f) : r.GetRepeatedMessage(message, f, index));
  }
  return nullptr;
}

}  // namespace

Json ProtoJson(const Message& message) {
  if (message.GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    google::protobuf::Timestamp time;
    time.CopyFrom(message);
    return TimeText(time);
  }
  const Reflection& reflection = *message.GetReflection();
  Json out = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_map()) {  // all our maps are from string to string
      Json map = Json::object();
      for (int k = 0; k < reflection.FieldSize(message, &field); ++k) {
        const Message& entry = reflection.GetRepeatedMessage(message, &field, k);
        const Json pair = ProtoJson(entry);
        map[pair.at("key").get<std::string>()] = pair.at("value");
      }
      out[field.name()] = map;
    } else if (field.is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection.FieldSize(message, &field); ++k) {
        list.push_back(Value(message, field, k));
      }
      out[field.name()] = list;
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      out[field.name()] = Value(message, field, -1);
    }
  }
  return out;
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", TimeOf(time), absl::UTCTimeZone());
}

std::string Dump(const Json& json) {
  return VisibleJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace capstan::services
