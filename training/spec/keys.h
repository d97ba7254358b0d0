// How the fields of JobSpec are named in a job file.
//
// A key is the field's name, except
//   `..._seconds`          a duration: written with a unit, without "_seconds" in the key
//   `every_seconds`        beside the Period `every`: the same key, "30s" instead of "500 steps";
//                          0 is "never"
//   `backoff_..._seconds`  a key of a group: backoff: {initial: 1s}
//
// Attributes of a node are a group of keys: {kernel_shape: [3, 3], auto_pad: VALID, ratio: 0.5,
// bias: true}. Only the form of a value decides its type, whatever the operator. 3 is an integer,
// 3.0 a number, true and false are 1 and 0, and a list is a list of integers. Everything else is a
// text, and so is anything in quotes.
#ifndef CAPSTAN_TRAINING_SPEC_KEYS_H_
#define CAPSTAN_TRAINING_SPEC_KEYS_H_

#include <google/protobuf/descriptor.h>

#include <string>

#include "absl/strings/string_view.h"

namespace capstan::training::spec {

inline constexpr absl::string_view kNever = "never";

bool IsPeriod(const google::protobuf::FieldDescriptor* field);
bool IsDuration(const google::protobuf::FieldDescriptor* field);

// GraphNode.attributes.
bool IsAttributes(const google::protobuf::FieldDescriptor* field);

// "epochs", or "backoff.initial" in a group.
std::string KeyOf(const google::protobuf::FieldDescriptor* field);
// The field of a key; for `every` the Period. Null if there is none.
const google::protobuf::FieldDescriptor* FieldOf(const google::protobuf::Descriptor* type,
                                                 absl::string_view key);
// The duration that may be given instead of a Period. Null if there is none.
const google::protobuf::FieldDescriptor* DurationBeside(
    const google::protobuf::FieldDescriptor* period);

// Whether the field is a duration that may be given instead of a Period.
bool IsBesidePeriod(const google::protobuf::FieldDescriptor* field);

// Follows JSON's grammar, so 010, .nan, 1_000 and 0x10 are not numbers.
bool IsDecimal(absl::string_view text, bool integer);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_KEYS_H_
