// Any of our messages as JSON that programs read: snake_case, every integer a number.
#ifndef CAPSTAN_SERVICES_PROTO_JSON_PROTO_JSON_H_
#define CAPSTAN_SERVICES_PROTO_JSON_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "google/protobuf/timestamp.pb.h"

namespace capstan::services {

// Every field that is set, and those without presence in any case; bytes as hex, enums without
// their prefix, timestamps as RFC 3339, numbers that are not finite as null.
nlohmann::ordered_json ProtoJson(const google::protobuf::Message& message);

// "2026-01-02T03:04:05.678Z".
std::string TimeText(const google::protobuf::Timestamp& time);

// One line. Text that is no UTF-8 has U+FFFD for what is not; what a terminal would obey or hide is
// escaped (visible_text.h).
std::string Dump(const nlohmann::ordered_json& json);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_PROTO_JSON_PROTO_JSON_H_
