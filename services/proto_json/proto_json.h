// Any of our messages as JSON for programs: snake_case, with every integer as a number.
#ifndef CAPSTAN_SERVICES_PROTO_JSON_PROTO_JSON_H_
#define CAPSTAN_SERVICES_PROTO_JSON_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "google/protobuf/timestamp.pb.h"

namespace capstan::services {

// Contains every field that is set, and always the fields without presence. Bytes are hex, enums
// lack their prefix, timestamps are RFC 3339, and non-finite numbers are null.
nlohmann::ordered_json ProtoJson(const google::protobuf::Message& message);

// "2026-01-02T03:04:05.678Z".
std::string TimeText(const google::protobuf::Timestamp& time);

// One line. Bytes that are not UTF-8 become U+FFFD. Characters that a terminal would obey or hide
// are escaped (visible_text.h).
std::string Dump(const nlohmann::ordered_json& json);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_PROTO_JSON_PROTO_JSON_H_
